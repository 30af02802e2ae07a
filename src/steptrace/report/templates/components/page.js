// On a narrow screen the definitions start folded.
if (innerWidth < 760) for (const block of document.querySelectorAll("details.defs")) block.open = false;

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
