// Leaves the rows in which a column of text holds what was typed.
const wanted = cb_obj.value_input.trim().toLowerCase()
const columns = names.map((each) => source.data[each])
const rows = []
for (let i = 0; i < columns[0].length; i++)
  if (columns.some((column) => column[i].toLowerCase().includes(wanted))) rows.push(i)
filter.indices = rows
