// Runs before the first paint, so that the chosen theme applies at once.
const chosen = localStorage.getItem("theme");
if (chosen) document.documentElement.dataset.theme = chosen;
