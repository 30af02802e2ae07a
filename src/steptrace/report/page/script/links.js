// A link to a place inside a folded block opens the block; the browser then scrolls to it.
const reveal = () => {
  const id = location.hash.slice(1);
  const place = document.getElementById(id) ?? document.getElementById(decodeURIComponent(id));
  if (!place) return;
  for (let at = place.closest("details"); at; at = at.parentElement.closest("details")) at.open = true;
  place.hidden = false;
  place.scrollIntoView();
};
addEventListener("hashchange", reveal);
addEventListener("load", () => { if (location.hash) reveal(); });
