// A head whose words are a term of a section's definitions shows the meaning when pointed at or focused.
const tip = Object.assign(document.createElement("div"), { className: "tip", id: "tip", hidden: true });
tip.setAttribute("role", "tooltip");
document.body.append(tip);
const meanings = (block) => [...block.querySelectorAll("dt")].flatMap((term) =>
  [term.textContent, ...term.textContent.split(/, | \/ | and /)].map((word) => [word.trim().toLowerCase(), term]));
const everywhere = new Map([...document.querySelectorAll("details.defs")].reverse().flatMap(meanings));
for (const head of document.querySelectorAll("thead th, .facts dt, figure h3")) {
  const section = head.closest("section")?.querySelector("details.defs");
  const words = head.textContent.trim().toLowerCase().replace(/\s+/g, " ").replace(/, predicted$/, "");
  const term = new Map(section ? meanings(section) : []).get(words) ?? everywhere.get(words);
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

// Sorts a table by a column: first click descending, then ascending. Rows without a value stay last.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  const key = (row, at) => {
    const cell = row.cells[at];
    const text = cell.dataset.sort ?? cell.textContent.trim();
    return text === "" ? null : isNaN(text) ? text : Number(text);
  };
  heads.forEach((head, at) => {
    const sort = () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      for (const body of table.tBodies) {
        const rows = [...body.rows].filter((row) => row.cells.length === heads.length);
        rows.sort((a, b) => {
          const [x, y] = [key(a, at), key(b, at)];
          if (x === null || y === null) return (x === null) - (y === null);
          return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1);
        });
        body.append(...rows);
      }
    };
    head.classList.add("sort");
    head.tabIndex = 0;
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  });
}

// A flame graph: a click on a box widens it to the whole width, and a search marks the boxes whose text holds it.
for (const graph of document.querySelectorAll(".flame-graph")) {
  const boxes = [...graph.querySelectorAll("svg.flame > svg")].map((node) => ({
    node, x: parseFloat(node.getAttribute("x")), y: Number(node.getAttribute("y")),
    width: parseFloat(node.getAttribute("width")), title: node.querySelector("title").textContent,
  }));
  const bar = graph.querySelector(".flame-bar");
  const input = Object.assign(document.createElement("input"), { type: "search", placeholder: "Search the boxes" });
  input.setAttribute("aria-label", "Search the flame graph");
  const note = document.createElement("span");
  const back = Object.assign(document.createElement("button"), { type: "button", textContent: "Whole graph", hidden: true });
  bar.append(note, back, input);
  const zoom = (on) => {
    const low = on.x - 1e-5, high = on.x + on.width + 1e-5;
    for (const box of boxes) {
      const above = box.y < on.y && box.x <= on.x + 1e-5 && box.x + box.width >= on.x + on.width - 1e-5;
      const inside = box.y >= on.y && box.x >= low && box.x + box.width <= high;
      box.node.style.display = above || inside ? "" : "none";
      box.node.setAttribute("x", `${above ? 0 : ((box.x - on.x) * 100) / on.width}%`);
      box.node.setAttribute("width", `${above ? 100 : (box.width * 100) / on.width}%`);
      box.node.classList.toggle("faded", above && on !== boxes[0]);
      if (inside && !box.node.querySelector("text") && box.width / on.width > 0.004) {
        const text = document.createElementNS(box.node.namespaceURI, "text");
        text.setAttribute("x", "4");
        text.setAttribute("y", "13");
        text.textContent = box.title.split("\n")[0].slice(0, 90);
        box.node.append(text);
      }
    }
    back.hidden = on === boxes[0];
  };
  for (const box of boxes) box.node.addEventListener("click", () => zoom(box));
  back.addEventListener("click", () => zoom(boxes[0]));
  input.addEventListener("input", () => {
    const wanted = input.value.trim().toLowerCase();
    const found = boxes.filter((box) => wanted && box.title.split("\n")[0].toLowerCase().includes(wanted));
    for (const box of boxes) box.node.classList.toggle("found", found.includes(box));
    // Boxes inside found ones are counted with them.
    let share = 0;
    for (const box of found) {
      const held = found.some((other) => other.y < box.y && other.x <= box.x + 1e-5 && other.x + other.width >= box.x + box.width - 1e-5);
      if (!held) share += box.width;
    }
    note.textContent = wanted ? `${found.length} boxes, ${share.toFixed(1)} %` : "";
  });
}
