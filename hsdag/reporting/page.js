// Follows the theme of the system, or the reader's choice by the button.
const root = document.documentElement
const button = document.querySelector("button.theme")
const system = matchMedia("(prefers-color-scheme: dark)")
function take(theme) {
  root.dataset.theme = theme
  button.textContent = theme == "dark" ? "Light theme" : "Dark theme"
  window.paint_figures?.()
}
button.addEventListener("click", () => take(root.dataset.theme == "dark" ? "light" : "dark"))
system.addEventListener("change", () => take(system.matches ? "dark" : "light"))
take(system.matches ? "dark" : "light")
