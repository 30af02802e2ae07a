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
  // A name of which only a fragment would be seen is not written.
  const name = (box, letters) => {
    const whole = box.title.split("\n")[0];
    let text = box.node.querySelector("text");
    if (letters < Math.min(whole.length, 12)) { text?.remove(); return; }
    if (!text) {
      text = document.createElementNS(box.node.namespaceURI, "text");
      text.setAttribute("x", "4");
      text.setAttribute("y", "13");
      box.node.append(text);
    }
    text.textContent = whole.length <= letters ? whole : `${whole.slice(0, letters - 1)}…`;
  };
  const zoom = (on) => {
    const low = on.x - 1e-5, high = on.x + on.width + 1e-5;
    for (const box of boxes) {
      const above = box.y < on.y && box.x <= on.x + 1e-5 && box.x + box.width >= on.x + on.width - 1e-5;
      const inside = box.y >= on.y && box.x >= low && box.x + box.width <= high;
      box.node.style.display = above || inside ? "" : "none";
      box.node.setAttribute("x", `${above ? 0 : ((box.x - on.x) * 100) / on.width}%`);
      box.node.setAttribute("width", `${above ? 100 : (box.width * 100) / on.width}%`);
      box.node.classList.toggle("faded", above && on !== boxes[0]);
      const letters = Math.floor(((graph.clientWidth || 1100) * (above ? 1 : box.width / on.width)) / 7.3) - 1;
      if (above || inside) name(box, letters);
    }
    back.hidden = on === boxes[0];
  };
  zoom(boxes[0]);
  for (const box of boxes) box.node.addEventListener("click", () => zoom(box));
  back.addEventListener("click", () => zoom(boxes[0]));
  input.addEventListener("input", () => {
    const wanted = input.value.trim().toLowerCase();
    const hits = boxes.filter((box) => wanted && box.title.split("\n")[0].toLowerCase().includes(wanted));
    for (const box of boxes) box.node.classList.toggle("hit", hits.includes(box));
    // Boxes inside hits are counted with them.
    let share = 0;
    for (const box of hits) {
      const held = hits.some((other) => other.y < box.y && other.x <= box.x + 1e-5 && other.x + other.width >= box.x + box.width - 1e-5);
      if (!held) share += box.width;
    }
    note.textContent = wanted ? `${hits.length} boxes, ${share.toFixed(1)} %` : "";
  });
}
