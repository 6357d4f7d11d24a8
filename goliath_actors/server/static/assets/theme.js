// Sets the remembered theme before anything is drawn, so that a dark page does not begin with a white flash.
(() => {
  const root = document.documentElement;
  try {
    const theme = localStorage.getItem("goliath-theme");
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  } catch {
    // Storage can be switched off: the system's theme is used.
  }
})();
