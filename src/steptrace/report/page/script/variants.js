// A study's variants: which of them are shown, and which one the others are compared with.
const result = document.querySelector("table.result[data-compared]");
const { names, ms, against: computed } = result ? JSON.parse(result.dataset.compared) : {};
const baseline = result?.dataset.baseline;
const nameOf = (node) => node.querySelector(":scope > th .variant, :scope > th.variant, :scope > summary .variant, :scope > .claim .variant, :scope > h3")?.textContent.trim();

const element = (kind, properties, ...inside) => {
  const made = Object.assign(document.createElement(kind), properties);
  made.append(...inside);
  return made;
};

// The variants that a node is about: a folded block may speak for several.
const namesOf = (node) => node.dataset.variant ? [node.dataset.variant] : (node.dataset.variants ? JSON.parse(node.dataset.variants) : [nameOf(node)].filter(Boolean));

// Rows of tables and of charts, folded blocks and findings that are about variants.
const placesOf = (root) => {
  const places = new Map();
  for (const node of root.querySelectorAll("tbody > tr, details.block, .failures details, .finding .said, svg [data-variant], figure, .charts > div")) {
    for (const name of namesOf(node)) places.set(name, [...(places.get(name) ?? []), node]);
  }
  return places;
};

const chooser = (places) => {
  const hidden = new Set();
  const boxes = [...result.tBodies[0].rows].map(nameOf).filter((name) => name !== baseline).map((name) => {
    const box = element("input", { type: "checkbox", checked: true });
    box.addEventListener("change", () => {
      if (box.checked) hidden.delete(name);
      else hidden.add(name);
      for (const node of places.get(name) ?? []) node.toggleAttribute("hidden", namesOf(node).every((one) => hidden.has(one)));
      // A finding all of whose variants are hidden goes, too.
      for (const item of document.querySelectorAll("li.finding")) {
        const said = [...item.querySelectorAll(".said")];
        item.hidden = said.length > 0 && said.every((node) => node.hidden);
      }
    });
    return element("label", {}, box, ` ${name}`);
  });
  return element("details", { className: "choose" }, element("summary", { textContent: "Show variants" }), element("div", {}, ...boxes));
};

const badge = (word) => element("span", { className: `badge ${word.replace(" ", "-")}`, textContent: word });
const note = (text) => element("span", { className: "note", textContent: text });

// A variant against another baseline, as study/first_screen.py says it: ratio, interval, low, high, verdict.
const against = (from, name) => {
  if (computed) return computed[from]?.[name] ?? null;
  return [`${(ms[names.indexOf(from)] / ms[names.indexOf(name)]).toPrecision(3)}×`, null, null, null, null];
};

const place = (value) => {
  const [low, high, at] = [Number(result.dataset.low), Number(result.dataset.high), value].map(result.dataset.log ? Math.log : Number);
  return `${Math.min(Math.max((100 * (at - low)) / (high - low), 0), 100)}%`;
};

const redraw = (row, from, found) => {
  const picture = row.querySelector("svg.on-scale");
  if (!picture) return;
  const time = ms[names.indexOf(from)];
  picture.setAttribute("class", `on-scale ${found ? (found[4] ?? "none") : "base"}`);
  for (const line of picture.querySelectorAll("line")) line.remove();
  const line = (kind, x1, x2, y1, y2) => {
    const made = document.createElementNS(picture.namespaceURI, "line");
    for (const [key, value] of Object.entries({ class: kind, x1, x2, y1, y2 })) made.setAttribute(key, value);
    picture.prepend(made);
  };
  if (found && found[2]) line("interval", place(time / found[3]), place(time / found[2]), "50%", "50%");
  line("baseline", place(time), place(time), 0, "100%");
};

const rewrite = (row, from) => {
  const name = nameOf(row);
  if (!names.includes(name)) return;
  const found = name === from ? null : against(from, name);
  const [ratio, interval] = found ?? ["1, by definition", null];
  const differs = row.querySelector(".badge.bad")?.cloneNode(true);
  const word = found ? (found[4] ?? (computed ? "no verdict" : "not computed")) : "baseline";
  const cell = row.querySelector("td.ratio");
  cell?.replaceChildren(element("b", { textContent: ratio }), ...(interval ? [note(interval)] : []));
  const short = !cell && found ? [note(ratio)] : [];
  if (interval) short[0]?.append(element("span", { className: "ends", textContent: ` (${interval})` }));
  row.querySelector("td.verdict").replaceChildren(badge(word), ...(differs ? [" ", differs] : []), ...short);
  redraw(row, from, found);
};

const baselineChooser = (said) => {
  const rows = [...document.querySelectorAll("table.result > tbody > tr, table.variants > tbody > tr")].filter((row) => row.querySelector("td.verdict"));
  const original = rows.map((row) => [...row.querySelectorAll("td.verdict, td.ratio, td.drawn")].map((cell) => [cell, [...cell.childNodes].map((node) => node.cloneNode(true))]));
  const options = names.map((name) => element("option", { value: name, textContent: name, selected: name === baseline }));
  const select = element("select", {}, ...options);
  select.addEventListener("change", () => {
    for (const [cell, nodes] of original.flat()) cell.replaceChildren(...nodes.map((node) => node.cloneNode(true)));
    const chosen = select.value;
    said.hidden = chosen === baseline;
    if (said.hidden) return;
    for (const row of rows) rewrite(row, chosen);
    said.textContent = `Ratios, intervals and verdicts of both tables of variants are against ${chosen}, `
      + (computed ? "computed from the runs' medians as for the study's own baseline, " : "their intervals and verdicts not computed (of 3 to 24 variants they are); ")
      + `all sentences and other sections against ${baseline}. A comparison chosen after seeing the results is weaker evidence.`;
  });
  return element("label", {}, "Baseline ", select);
};

if (result) {
  const said = element("p", { className: "note rebased", hidden: true });
  said.setAttribute("role", "status");
  const tools = result.nextElementSibling?.matches(".table-tools") ? result.nextElementSibling : result;
  const bar = element("div", { className: "compare-tools" });
  if (names.length > 1) bar.append(baselineChooser(said));
  if (result.tBodies[0].rows.length > 2) bar.append(chooser(placesOf(document)));
  if (tools === result) tools.after(bar);
  else tools.prepend(bar);
  tools.after(said);
}
