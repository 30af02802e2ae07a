// A head whose words are a term of a section's definitions shows the meaning when pointed at or focused.
const tip = Object.assign(document.createElement("div"), { className: "tip", id: "tip", hidden: true });
tip.setAttribute("role", "tooltip");
document.body.append(tip);
const meanings = (block) => [...block.querySelectorAll("dt")].flatMap((term) =>
  [term.textContent, ...term.textContent.split(/, | \/ | and /)].map((word) => [word.trim().toLowerCase(), term]));
const everywhere = new Map([...document.querySelectorAll("details.defs")].reverse().flatMap(meanings));
for (const head of document.querySelectorAll("thead th, .facts dt, figure h3")) {
  const section = head.closest("section")?.querySelector("details.defs");
  const words = head.textContent.trim().toLowerCase().replace(/\s+/g, " ").replace(/, (predicted|profiled mean)$/, "");
  const inSection = new Map(section ? meanings(section) : []), whole = words.replace(/ per step$/, "");
  const term = inSection.get(words) ?? inSection.get(whole) ?? everywhere.get(words) ?? everywhere.get(whole);
  if (!term) continue;
  const show = () => {
    tip.textContent = term.nextElementSibling.textContent;
    tip.hidden = false;
    const at = head.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(at.left, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${at.bottom + tip.offsetHeight + 8 > innerHeight ? at.top - tip.offsetHeight - 6 : at.bottom + 6}px`;
    head.setAttribute("aria-describedby", "tip");
  };
  const hide = () => { tip.hidden = true; head.removeAttribute("aria-describedby"); };
  head.classList.add("term");
  head.tabIndex = 0;
  for (const event of ["mouseenter", "focus"]) head.addEventListener(event, show);
  for (const event of ["mouseleave", "blur"]) head.addEventListener(event, hide);
  head.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
}
addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
