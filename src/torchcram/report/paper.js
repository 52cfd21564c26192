// Filters of the claims: by verdict (several at once), by section, by words, and the best known alone.
(() => {
  "use strict";
  const form = document.querySelector(".filters");
  if (!form) return;
  const chips = [...form.querySelectorAll("[data-verdict]")];
  const rows = [...document.querySelectorAll(".claims tbody tr")].map((row) => ({
    row,
    words: row.textContent.toLowerCase(),
  }));
  const output = form.querySelector("output");
  const none = document.querySelector(".none");

  const apply = () => {
    const verdicts = chips.filter((chip) => chip.ariaPressed === "true").map((chip) => chip.dataset.verdict);
    const section = form.elements.section.value;
    const wanted = form.elements.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const headline = form.elements.headline.checked;
    let shown = 0;
    for (const { row, words } of rows) {
      const matches =
        (!verdicts.length || verdicts.includes(row.dataset.verdict)) &&
        (!section || row.dataset.section === section) &&
        (!headline || "headline" in row.dataset) &&
        wanted.every((word) => words.includes(word));
      row.hidden = !matches;
      shown += matches;
    }
    output.textContent = `${shown} of ${rows.length} claims`;
    none.hidden = shown > 0;
  };

  for (const chip of chips) {
    chip.addEventListener("click", () => {
      chip.ariaPressed = String(chip.ariaPressed !== "true");
      apply();
    });
  }
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => {
    for (const chip of chips) chip.ariaPressed = "false";
    setTimeout(apply); // the fields are emptied after this event
  });
  apply(); // a browser may have kept what was typed before a reload
})();
