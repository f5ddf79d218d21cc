// Gives what is drawn on canvases the page's colours, as soon as figures are there and whenever the theme changes.
window.paint_figures = () => {
  const page = getComputedStyle(document.documentElement)
  const [ink, rule] = ["--ink", "--rule"].map((name) => page.getPropertyValue(name))
  for (const each of legends) each.label_text_color = ink
  for (const each of titles) each.text_color = ink
  for (const each of bars) [each.title_text_color, each.major_label_text_color] = [ink, ink]
  for (const each of figures) each.outline_line_color = rule
}
window.paint_figures()
