"use strict";
// A click on a heading sorts: up, down, as it was. Cells without a number stay at the end.
const STATES = { none: "ascending", ascending: "descending", descending: "none" };

function value(row, column) {
  const cell = row.cells[column];
  if (column === 0) return cell.dataset.order;
  return cell.dataset.order === "" ? null : Number(cell.dataset.order);
}

function compare(a, b, sign) {
  if (a === null || b === null) return (a === null) - (b === null);
  return sign * (typeof a === "string" ? a.localeCompare(b) : a - b);
}

for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const state = STATES[head.getAttribute("aria-sort")];
      heads.forEach((other) => other.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", state);
      const sign = state === "descending" ? -1 : 1;
      const rows = [...original];
      if (state !== "none") {
        rows.sort((a, b) => compare(value(a, column), value(b, column), sign));
      }
      body.append(...rows);
    });
  });
}
