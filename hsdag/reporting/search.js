// Selects the ops whose name or type holds the text, and goes to the first one; `step` goes on to another one.
const {x, y, name, type} = source.data
const wanted = search.value_input.trim().toLowerCase()
let found = []
if (wanted != "") {
  for (let i = 0; i < name.length; i++)
    if (name[i].toLowerCase().includes(wanted) || type[i].toLowerCase().includes(wanted)) found.push(i)
  found.sort((a, b) => x[a] - x[b] || y[a] - y[b])
}
const at = step == 0 || found.length == 0 ? 0 : (search.tags[0] + step + found.length) % found.length
search.tags = [at]
source.selected.indices = found
count.text = wanted == "" ? "" : found.length == 0 ? "no op" : `${at + 1} of ${found.length}`
if (found.length > 0) {
  const [xs, ys] = [figure.x_range, figure.y_range]
  const width = Math.min(Math.abs(xs.end - xs.start), layers)
  const height = Math.min(Math.abs(ys.end - ys.start), (width * figure.inner_height) / figure.inner_width)
  const op = found[at]
  xs.setv({start: x[op] - width / 2, end: x[op] + width / 2})
  ys.setv({start: y[op] + height / 2, end: y[op] - height / 2})
}
