// Runs before the first paint, so that a dark page does not flash white. src/theme.ts takes over from here.
(function () {
  var t = null;
  try { t = localStorage.getItem("ferula.theme"); } catch (e) { /* storage is off */ }
  var dark = t === "dark" || (t !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
})();
