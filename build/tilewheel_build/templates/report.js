"use strict";
// Sorts the tables and filters the artifacts. It moves and hides rows and writes no markup.
(() => {
  const value = (row, index) => {
    const cell = row.cells[index];
    if (!("v" in cell.dataset)) return cell.textContent;
    return cell.dataset.v === "" ? null : Number(cell.dataset.v);
  };
  const order = (a, b) => (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, index) => {
      heading.querySelector("button").addEventListener("click", () => {
        // Numbers are looked at from the largest down, names from A.
        const first = heading.classList.contains("number") ? "descending" : "ascending";
        const other = first === "ascending" ? "descending" : "ascending";
        const direction = heading.getAttribute("aria-sort") === first ? other : first;
        headings.forEach((each) => each.removeAttribute("aria-sort"));
        heading.setAttribute("aria-sort", direction);
        const sign = direction === "ascending" ? 1 : -1;
        const rows = [...body.rows].map((row) => [value(row, index), row]);
        // What is not known comes last either way.
        rows.sort(([a], [b]) =>
          a === null || b === null ? (a === null) - (b === null) : sign * order(a, b));
        body.append(...rows.map(([, row]) => row));
      });
    });
  }
  const rows = [...document.querySelectorAll("#artifacts tbody tr")];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const label = document.querySelector(".filter");
  const count = document.querySelector(".count");
  const apply = (text) => {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, index) => {
      row.hidden = !words.every((word) => texts[index].includes(word));
      shown += row.hidden ? 0 : 1;
    });
    count.textContent = words.length ? `${shown} of ${rows.length}` : `${rows.length}`;
  };
  label.hidden = false;
  label.querySelector("input").addEventListener("input", (event) => apply(event.target.value));
  apply("");
})();
