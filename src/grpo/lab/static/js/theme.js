// Before the first paint, so that a chosen theme never flashes the other one.
const chosen = localStorage.getItem("theme");
if (chosen) document.documentElement.dataset.theme = chosen;
