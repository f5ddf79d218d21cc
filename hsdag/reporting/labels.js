// Writes their types onto the ops in view, as soon as these are wide enough.
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
