// Blocking, so that the page is never painted in the wrong colours.
try {
  const kept = localStorage.getItem('heeler-theme');
  if (kept === 'light' || kept === 'dark') document.documentElement.dataset.theme = kept;
} catch { /* no storage: the system decides */ }
document.documentElement.classList.add('js');
