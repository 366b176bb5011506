// Finds the row of docs/ERRORS.md that a pasted message belongs to, as `gramian help` does.
const field = document.getElementById("pasted");
const status = document.getElementById("found");
const entries = [...document.querySelectorAll("td:first-child > p > code, td:first-child > code, li > p > code, li > code")]
  .filter((code) => code.closest("article"))
  .map((code) => {
    const words = code.textContent.trim();
    const parts = words.split("…").map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
    return { row: code.closest("tr, li"), pattern: new RegExp(parts.join(".*?"), "s"), size: words.replaceAll("…", "").length };
  });

field.addEventListener("input", () => {
  for (const { row } of entries) row.style.outline = "";
  const text = field.value.replace(/\s+/g, " ");
  const fitting = entries.filter(({ pattern, size }) => size > 3 && pattern.test(text));
  if (!fitting.length) {
    status.textContent = text ? "No message of this page is in it: try the search of the site." : "";
    return;
  }
  const best = fitting.reduce((a, b) => (b.size > a.size ? b : a)).row;
  best.style.outline = "3px solid var(--color-brand-primary)";
  best.scrollIntoView({ block: "center" });
  status.textContent = "Found: it is marked below.";
});
