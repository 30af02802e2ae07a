// Tables: a click on a head sorts.
const UNITS = {
  ns: 1, "µs": 1e3, ms: 1e6, s: 1e9, min: 6e10, h: 3.6e12, B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12, KiB: 1024, MiB: 1024 ** 2, GiB: 1024 ** 3,
};

// What a cell is sorted by: a number in one unit, else its text (a date, too); null if it holds nothing measured.
const sortKey = (cell) => {
  const text = cell.dataset.sort ?? cell.textContent.trim().replace(/\s+/g, " ");
  if (text === "" || text === "–" || text === "not measured") return null;
  const [, sign, digits, unit] = text.match(/^([−-]?)([\d,]*\.?\d+(?:e[+-]?\d+)?)(?![\d.,]*[-_:.]\w)\s*([A-Za-zµ]*)/) ?? [];
  return digits === undefined ? text.toLowerCase() : (sign ? -1 : 1) * Number(digits.replaceAll(",", "")) * (UNITS[unit] ?? 1);
};

const compare = (a, b, sign) => {
  if (a === null || b === null) return (a === null) - (b === null); // what was not measured stays last
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return (a < b ? -1 : a > b ? 1 : 0) * sign;
};

const makeSortable = (table, heads) => {
  heads.forEach((head, at) => {
    const sort = () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const body = table.tBodies[0];
      body.append(...[...body.rows].sort((a, b) => compare(sortKey(a.cells[at]), sortKey(b.cells[at]), down ? -1 : 1)));
    };
    head.classList.add("sort");
    head.tabIndex = 0;
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      sort();
    });
  });
};

// Tables that are wider than the page scroll, by keyboard, too.
const reachable = (area) => { if (area.scrollWidth > area.clientWidth) area.tabIndex = 0; };

for (const table of document.querySelectorAll("main table")) {
  if (table.closest(".scroll")) reachable(table.closest(".scroll"));
  if (!table.tHead) continue;
  const heads = [...table.tHead.rows[0].cells];
  if (table.tBodies[0].rows.length > 1) makeSortable(table, heads);
}
