// Follows the theme of the system, or the reader's choice by the button.
const root = document.documentElement
const button = document.querySelector("button.theme")
const system = matchMedia("(prefers-color-scheme: dark)")
let drawn = {legends: [], titles: [], figures: []}
function take(theme) {
  root.dataset.theme = theme
  button.textContent = theme == "dark" ? "Light theme" : "Dark theme"
  paint(drawn)
}
button.addEventListener("click", () => take(root.dataset.theme == "dark" ? "light" : "dark"))
system.addEventListener("change", () => take(system.matches ? "dark" : "light"))
take(system.matches ? "dark" : "light")

// Gives what is drawn on canvases the page's colours, as soon as figures are there and whenever the theme changes.
function paint(parts) {
  drawn = parts
  const page = getComputedStyle(root)
  const [ink, rule] = ["--ink", "--rule"].map((name) => page.getPropertyValue(name))
  for (const each of parts.legends) each.label_text_color = ink
  for (const each of parts.titles) each.text_color = ink
  for (const each of parts.figures) each.outline_line_color = rule
}

// Goes to the ops of a layer in the graph.
document.addEventListener("click", (event) => {
  if (!event.target.dataset.view) return
  const [left, right, top, bottom] = JSON.parse(event.target.dataset.view)
  const figure = Bokeh.documents[0].get_model_by_name("graph")
  figure.x_range.setv({start: left - 2, end: right + 2})
  figure.y_range.setv({start: bottom + 2, end: top - 2})
  document.querySelector("#graph .bk").scrollIntoView()
})

// Writes their types onto the ops in view, as soon as these are wide enough.
function label({figure, ops, labels}) {
  const [xs, ys] = [figure.x_range, figure.y_range]
  const shown = []
  if (figure.inner_width / Math.abs(xs.end - xs.start) > 80) {
    const {x, y} = ops.data
    const [top, bottom] = [Math.min(ys.start, ys.end), Math.max(ys.start, ys.end)]
    for (let i = 0; i < x.length; i++)
      if (x[i] > xs.start - 1 && x[i] < xs.end + 1 && y[i] > top - 1 && y[i] < bottom + 1) shown.push(i)
  }
  const data = {}
  for (const column of ["x", "y", "type"]) data[column] = shown.map((i) => ops.data[column][i])
  labels.data = data
}

// Selects the ops whose name or type holds the text, and goes to the first one; `step` goes on to another one.
function look_for(step, {search, count, ops, figure, layers}) {
  const {x, y, name, type} = ops.data
  const wanted = search.value_input.trim().toLowerCase()
  let found = []
  if (wanted != "") {
    for (let i = 0; i < name.length; i++)
      if (name[i].toLowerCase().includes(wanted) || type[i].toLowerCase().includes(wanted)) found.push(i)
    found.sort((a, b) => x[a] - x[b] || y[a] - y[b])
  }
  const at = step == 0 || found.length == 0 ? 0 : (search.tags[0] + step + found.length) % found.length
  search.tags = [at]
  ops.selected.indices = found
  count.text = wanted == "" ? "" : found.length == 0 ? "no op" : `${at + 1} of ${found.length}`
  if (found.length == 0) return
  const [xs, ys] = [figure.x_range, figure.y_range]
  const width = Math.min(Math.abs(xs.end - xs.start), layers)
  const height = Math.min(Math.abs(ys.end - ys.start), (width * figure.inner_height) / figure.inner_width)
  const op = found[at]
  xs.setv({start: x[op] - width / 2, end: x[op] + width / 2})
  ys.setv({start: y[op] + height / 2, end: y[op] - height / 2})
}
