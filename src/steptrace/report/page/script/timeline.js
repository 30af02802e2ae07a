// The picture of a step: zoomed and moved by mouse, touch and keyboard, with names in all boxes that have room for them.
const UNITS = 10000; // the width of a picture, as draw/timeline.py counts it
const MOST_ZOOM = 60, NAME_FROM = 34, LETTER = 6.2; // times, pixels
const SVG = document.querySelector("svg").namespaceURI;

const make = (kind, attributes, text) => {
  const made = document.createElementNS(SVG, kind);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
};
const time = (ns) => {
  const [unit, size] = [["s", 1e9], ["ms", 1e6], ["µs", 1e3]].find(([, least]) => Math.abs(ns) >= least) ?? ["ns", 1];
  return `${Number((ns / size).toPrecision(4))} ${unit}`;
};

// Boxes too narrow to be pointed at are one path in the page; zoomed in, each is a box with a name of its own.
const unfold = (graph, scale) => {
  const names = JSON.parse(graph.dataset.names ?? "[]");
  for (const path of graph.querySelectorAll("path[data-boxes]")) {
    const drawn = path.getAttribute("d").match(/M[^M]+/g) ?? [];
    path.dataset.boxes.split(" ").forEach((told, at) => {
      const [x, y, width, height] = drawn[at].match(/-?\d+/g).map(Number);
      const [name, ns] = told.split(":").map(Number);
      const exact = Math.max(Math.min((ns * UNITS) / scale, width), 0.2);
      const box = make("rect", { x, y, width: exact, height });
      box.append(make("title", {}, `${names[name]}\n${time(ns)} from ${time((x * scale) / UNITS)}`));
      path.before(box);
    });
    path.remove();
  }
};

const view = (graph) => {
  const picture = graph.querySelector("svg.timeline");
  const scale = Number(picture.dataset.scale), bottom = Number(picture.getAttribute("height")) - 18;
  let from = 0, to = UNITS, lanes = null, moved = [];

  const begin = () => {
    unfold(picture, scale);
    lanes = [...picture.querySelectorAll(":scope > svg[viewBox]")].map((node) => ({
      node, top: Number(node.getAttribute("y")), height: Number(node.getAttribute("height")),
      boxes: [...node.querySelectorAll("rect")].map((box) => ({
        x: Number(box.getAttribute("x")), width: Number(box.getAttribute("width")),
        bottom: Number(box.getAttribute("y")) + Number(box.getAttribute("height")), full: Number(box.getAttribute("height")) >= 13,
        name: box.querySelector("title")?.textContent.split("\n")[0] ?? "",
      })),
    }));
    for (const node of picture.querySelectorAll(":scope > svg:not([viewBox]), :scope > .grid, :scope > .tick")) node.remove();
    moved = [...picture.querySelectorAll(":scope > rect, :scope > line")].map((node) => ({
      node, at: ["x", "x1", "x2"].filter((key) => node.hasAttribute(key)).map((key) => [key, parseFloat(node.getAttribute(key)) * 100]),
      width: node.hasAttribute("width") ? parseFloat(node.getAttribute("width")) * 100 : null,
    }));
  };

  const nameBoxes = (overlay, pixels) => {
    for (const lane of lanes) for (const box of lane.boxes) {
      const left = Math.max(box.x, from), right = Math.min(box.x + box.width, to), width = (right - left) * pixels;
      if (width < NAME_FROM || !box.full) continue;
      const cell = make("svg", { x: `${(100 * (left - from)) / (to - from)}%`, y: lane.top + box.bottom - 16, width, height: 16 });
      const letters = Math.floor((width - 6) / LETTER);
      const name = box.name.length > letters ? box.name.replace(/^(aten::|idle: )/, "") : box.name;
      cell.append(make("text", { x: 4, y: 12 }, name.length > letters ? `${name.slice(0, letters - 1)}…` : name));
      overlay.append(cell);
    }
  };

  const drawGrid = (overlay) => {
    const least = ((to - from) * scale) / UNITS / 8, power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((value) => value >= least) ?? 10 * power;
    for (let ns = Math.ceil((from * scale) / UNITS / step) * step; ns <= (to * scale) / UNITS; ns += step) {
      const share = (100 * ((ns * UNITS) / scale - from)) / (to - from);
      overlay.append(make("line", { class: "grid", x1: `${share}%`, x2: `${share}%`, y1: 0, y2: bottom }));
      if (share < 93) overlay.append(make("text", { class: "tick", x: `${share}%`, dx: 3, y: bottom + 12 }, time(ns)));
    }
  };

  const draw = () => {
    if (!lanes) begin();
    for (const lane of lanes) lane.node.setAttribute("viewBox", `${from} 0 ${to - from} ${lane.height}`);
    const share = (units) => `${(100 * (units - from)) / (to - from)}%`;
    for (const { node, at, width } of moved) {
      for (const [key, units] of at) node.setAttribute(key, share(units));
      if (width !== null) node.setAttribute("width", `${(100 * width) / (to - from)}%`);
    }
    picture.querySelector(".overlay")?.remove();
    const overlay = make("g", { class: "overlay" });
    drawGrid(overlay);
    nameBoxes(overlay, picture.clientWidth / (to - from));
    picture.append(overlay);
    whole.disabled = from === 0 && to === UNITS;
  };

  const show = (low, width) => {
    width = Math.min(Math.max(width, UNITS / MOST_ZOOM), UNITS);
    from = Math.min(Math.max(low, 0), UNITS - width);
    to = from + width;
    draw();
  };
  const zoom = (factor, at = (from + to) / 2) => show(at - (at - from) / factor, (to - from) / factor);
  const pan = (share) => show(from + share * (to - from), to - from);
  const reset = () => show(0, UNITS);
  const unitsAt = (event) => from + ((event.clientX - picture.getBoundingClientRect().left) / picture.clientWidth) * (to - from);

  const actions = { "+": () => zoom(2), "=": () => zoom(2), w: () => zoom(2), "-": () => zoom(0.5), s: () => zoom(0.5),
    ArrowLeft: () => pan(-0.25), a: () => pan(-0.25), ArrowRight: () => pan(0.25), d: () => pan(0.25), 0: reset, Escape: reset };
  const bar = graph.querySelector(".flame-bar");
  const button = (text, label, action) => {
    const made = Object.assign(document.createElement("button"), { type: "button", textContent: text, title: label });
    made.setAttribute("aria-label", label);
    made.addEventListener("click", action);
    bar.append(made);
    return made;
  };
  button("+", "Zoom in", actions["+"]);
  button("−", "Zoom out", actions["-"]);
  button("◂", "Earlier", actions.ArrowLeft);
  button("▸", "Later", actions.ArrowRight);
  const whole = button("Whole step", "The whole step", reset);
  whole.disabled = true;
  const said = document.createElement("output"); // a line of its own, so that the picture stays in its place
  bar.after(said);

  graph.tabIndex = 0;
  graph.setAttribute("role", "group");
  graph.setAttribute("aria-label", "Picture of a step: plus and minus zoom, arrow keys move, 0 shows the whole step");
  graph.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in actions)) return;
    event.preventDefault();
    actions[event.key]();
  });
  picture.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return; // without it the page scrolls
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1.25 : 0.8, unitsAt(event));
  }, { passive: false });
  picture.addEventListener("dblclick", (event) => zoom(2, unitsAt(event)));
  let grabbed = null;
  picture.addEventListener("pointerdown", (event) => {
    if (to - from === UNITS) return;
    grabbed = unitsAt(event);
    picture.setPointerCapture(event.pointerId);
  });
  picture.addEventListener("pointermove", (event) => {
    const box = event.target.closest?.("rect")?.querySelector("title");
    if (box) said.textContent = box.textContent.replace("\n", ", ");
    if (grabbed !== null && event.buttons) show(from + grabbed - unitsAt(event), to - from);
  });
  for (const end of ["pointerup", "pointercancel"]) picture.addEventListener(end, () => { grabbed = null; });
};

for (const graph of document.querySelectorAll(".timeline-graph")) view(graph);
