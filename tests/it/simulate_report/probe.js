// Tells the frame around what is to be seen of the page.
const errors = [];
addEventListener("error", e => errors.push(e.message));
addEventListener("securitypolicyviolation", e => errors.push(e.violatedDirective + " " + e.blockedURI));

function shown(element) { return element.getClientRects().length > 0; }

function overlapping(boxes) {
  const found = [];
  for (const [i, [a, text]] of boxes.entries())
    for (const [b, other] of boxes.slice(i + 1))
      if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3)
        found.push(text + " on " + other);
  return found;
}

function misplaced() {
  const found = [];
  for (const plot of document.querySelectorAll(".plot")) {
    if (!shown(plot)) continue;
    const boxes = [...plot.querySelectorAll("text")].map(t => [t.getBoundingClientRect(), t.textContent]);
    for (const [box, text] of boxes)
      if (box.left < -1 || box.right > document.documentElement.clientWidth + 1) found.push(text + " sticks out");
    found.push(...overlapping(boxes));
    // What stands before or after a plot keeps clear of its labels.
    const panel = plot.closest("figure, section"), frame = panel.getBoundingClientRect();
    const above = [...panel.querySelectorAll("figcaption, .say")].filter(shown).map(e => [e.getBoundingClientRect(), e.textContent]);
    for (const [box, text] of boxes) {
      if (box.bottom > frame.bottom + 1 || box.right > frame.right + 13) found.push(text + " leaves its frame");
      for (const [other, name] of above)
        if (box.top < other.bottom - 4 && other.top < box.bottom - 4 && box.left < other.right && other.left < box.right)
          found.push(text + " on " + name);
    }
  }
  return found;
}

addEventListener("load", () => {
  const count = selector => [...document.querySelectorAll(selector)].filter(shown).length;
  const plots = [...document.querySelectorAll(".plot > svg")];
  const described = plots.filter(p => p.getAttribute("role") === "img" && p.getAttribute("aria-label")).length;
  const seen = {
    errors,
    requests: performance.getEntriesByType("resource").map(e => e.name).filter(name => !name.startsWith("data:")),
    curves: [...document.querySelectorAll(".wide")].map(p => new Set([...p.querySelectorAll("path.curve")].map(c => c.classList[1])).size),
    described,
    undescribed: plots.length - described,
    maps: count(".flight .map"),
    parts: [...document.querySelectorAll("article > h2")].filter(shown).map(h => h.textContent),
    sideways: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    misplaced: misplaced(),
  };
  for (const choice of document.querySelectorAll(".show-queued")) choice.click();
  seen.queued_maps = count(".queued .map");
  document.getElementById("t0")?.click();
  seen.left_when_unticked = count(".s0");
  [...document.querySelectorAll(".legend button")].find(b => b.textContent === "none")?.click();
  seen.left_after_none = count("tr[class], .row, .curve, .dots, .panel");
  parent.postMessage(JSON.stringify(seen), "*");
});
