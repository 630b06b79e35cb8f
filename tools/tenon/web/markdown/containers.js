// Lists and tables as containers of items: an item is a list item or a row below the head.

// { kind, items: [{ first, end, map }], loose, shell(text) } of a top-level block, or null. shell() names what is around the items.
export function containerOf(tokens, { first, end }) {
  const { type, tag, attrs } = tokens[first];
  if (type === "bullet_list_open" || type === "ordered_list_open")
    return { kind: type, items: itemsBetween(tokens, first + 1, end - 1), loose: isLoose(tokens, { first, end }), shell: () => tag + JSON.stringify(attrs) };
  if (type !== "table_open") return null;
  let body = first;
  while (body < end && tokens[body].type !== "tbody_open") body++;
  if (body === end) return null;
  return { kind: type, items: itemsBetween(tokens, body + 1, end - 2), loose: false, shell: (text) => text({ map: [tokens[first].map[0], tokens[first].map[0] + 2] }) };
}

function itemsBetween(tokens, first, end) {
  const items = [];
  for (let i = first, start = first, depth = 0; i < end; i++) {
    depth += tokens[i].nesting;
    if (depth > 0) continue;
    items.push({ first: start, end: i + 1, map: tokens[start].map });
    start = i + 1;
  }
  return items;
}

const ownParagraph = (token, level) => (token.type === "paragraph_open" || token.type === "paragraph_close") && token.level === level + 2;

// A list is loose when its items' paragraphs are shown as such.
export function isLoose(tokens, { first, end }) {
  for (let i = first; i < end; i++) if (ownParagraph(tokens[i], tokens[first].level) && !tokens[i].hidden) return true;
  return false;
}
export function loosen(tokens, { first, end }) {
  for (let i = first; i < end; i++) if (ownParagraph(tokens[i], tokens[first].level)) tokens[i].hidden = false;
}
