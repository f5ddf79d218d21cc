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
// Goes to the ops of a layer in the graph.
document.addEventListener("click", (event) => {
  if (!event.target.dataset.view) return
  const [left, right, top, bottom] = JSON.parse(event.target.dataset.view)
  const figure = Bokeh.documents[0].get_model_by_name("graph")
  figure.x_range.setv({start: left - 2, end: right + 2})
  figure.y_range.setv({start: bottom + 2, end: top - 2})
  document.querySelector("#graph .bk").scrollIntoView()
})
