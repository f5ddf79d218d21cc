// Colours the ops by device, group or cost, and shows the key that belongs to it.
const by = cb_obj.value
for (const each of ops) {
  each.glyph.hatch_alpha = by == "cost" ? 0 : hatch
  each.glyph.fill_color = by == "cost" ? {field: "cost_ms", transform: mapper} : {field: `by_${by}`}
}
legend.visible = by == "device"
bar.visible = by == "cost"
