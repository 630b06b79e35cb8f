// Sets the chosen theme before anything is drawn. Not a module: modules run later.
try {
  const theme = JSON.parse(localStorage.getItem("tenon.theme"));
  if (theme) document.documentElement.dataset.theme = theme;
} catch { /* no storage: the system's theme */ }
