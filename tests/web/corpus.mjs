// Answers as models write them, made of parts by a fixed random sequence: the same 200 every time.
const parts = {
  heading: ["# Overview", "## Step 1: Install\nRun the installer and wait.", "### **Why this works**", "#### Notes:", "Summary\n-------"],
  text: [
    "Sure! Here's a concise explanation.",
    "The *derivative* of a function measures how fast it **changes**; see `f'(x)`.",
    "Let me break it down:\n- first point\n- second point with `code`\n- third point",
    "It costs $5 to $10 per month, and up to $100 a year.",
    "Line one of a poem,\nline two follows on,\nand line three is gone.",
    "A link: [the manual](https://example.org/a_b?c=d&e=f), a bare one: https://example.org/path_(x), and mail: a@example.org.",
    "Press <kbd>Ctrl</kbd>+<kbd>C</kbd>; H<sub>2</sub>O; 10<sup>3</sup>.<br>New line.",
    "Unclosed **bold and `code that never ends",
    "Ümläute, 日本語のテキスト, русский текст, emoji 🎉🚀, and \u0645\u0631\u062d\u0628\u0627 \u0628\u0643.",
    "Escapes: \\*not italic\\*, 2 * 3 * 4 = 24, snake_case_name, a < b && c > d, &amp; &copy;.",
    "~~Old~~ new. ==kept as is==. Footnote[^1].\n\n[^1]: It is not supported.",
    "As [1] shows, and [the paper][p] agrees.\n\n[p]: https://example.org/paper \"A paper\"",
  ],
  list: [
    "1. First\n2. Second\n3. Third",
    "1. **Install**\n   ```bash\n   npm install thing\n   ```\n2. **Run**\n\n   ```js\n   run({ fast: true });\n   ```\n\n3. Done.",
    "- a\n  - b\n    - c\n      1. d\n      2. e\n- f",
    "* loose one\n\n  with a second paragraph\n\n* loose two\n\n* loose three",
    "- [x] write tests\n- [ ] run them\n- [ ] fix `bug #3`",
    "1) other marker\n2) second\n\n   > a quote inside\n\n5) skipped numbers",
    "- item\n\n      indented code in an item\n- $x_1 + x_2$ and \\(y\\)",
    "1. العنصر الأول\n2. العنصر الثاني مع `f(x)` و $E = mc^2$\n   - فرعي",
  ],
  code: [
    "```python\ndef quicksort(a):\n    \"\"\"Sorts a list.\"\"\"\n    if len(a) <= 1:\n        return a\n    p = a[len(a) // 2]\n    return quicksort([x for x in a if x < p]) + [p] * a.count(p)\n```",
    "```c\n#include <stdio.h>\n\nint main(void) {\n    printf(\"%d\\n\", 42); /* the answer */\n    return 0;\n}\n```",
    "```html\n<script>alert(1)</script>\n<p class=\"x\">Text &amp; more</p>\n```",
    "```\nplain fence with | pipes | and *stars*\n```",
    "~~~yaml\nkey: value\nlist:\n  - 1\n  - two\n~~~",
    "````markdown\n```js\nnested();\n```\n````",
    "```diff\n- old line\n+ new line\n```",
    "```json\n{\"a\": [1, 2.5e3, null], \"b\": \"\\u00e4\"}\n```",
    "    indented code\n\n    after an empty line",
    "```sql\nSELECT a.name, COUNT(*) FROM a JOIN b ON a.id = b.a_id GROUP BY a.name;\n```",
  ],
  table: [
    "| Name | Speed | Notes |\n|:-----|------:|:-----:|\n| A | 10 | `fast` |\n| B | 2.5 | *slow* |\n| C | – | a \\| b |",
    "Feature | Yes | No\n--- | --- | ---\nTables | ✓ |\nMath | $a^2$ | $b$",
    "| Very wide | " + Array.from({ length: 14 }, (_, i) => `column ${i}`).join(" | ") + " |\n|" + "---|".repeat(15) + "\n| x | " + Array.from({ length: 14 }, (_, i) => `a longer cell value ${i}`).join(" | ") + " |",
    "| a |\n|---|\n| one<br>two |",
    "| الاسم | القيمة |\n|---|---:|\n| أ | 1 |\n| ب | 2 |",
  ],
  math: [
    "The roots are $x = \\frac{-b \\pm \\sqrt{b^2 - 4ac}}{2a}$.",
    "$$\n\\sum_{n=1}^{\\infty} \\frac{1}{n^2} = \\frac{\\pi^2}{6}\n$$",
    "\\[\n\\begin{pmatrix} a & b \\\\ c & d \\end{pmatrix} \\begin{pmatrix} x \\\\ y \\end{pmatrix}\n\\]",
    "Inline \\(E = mc^2\\) and display \\[ \\int_0^\\infty e^{-x}\\,dx = 1 \\] in a paragraph.",
    "A wrong formula: $\\frac{1}{$ and $$\\notacommand{x}$$",
    "$$\\begin{aligned} f(x) &= (x+1)^2 \\\\ &= x^2 + 2x + 1 \\end{aligned}$$",
  ],
  quote: ["> A quote\n> over two lines\n>\n> - with a list\n> - inside", "> **Note:** outer\n>> inner", "> ```js\n> quoted();\n> ```"],
  rule: ["---", "***"],
  unfinished: ["```python\nfor i in range(10):\n    print(i", "| a | b |\n|---|", "$$\n\\frac{a}{b", "- item\n  - ", "**bo", "[link](https://exam", "1. one\n2", "<details><summary>More</summary>\n\nHidden\n\n</details>", "<details>\n<summary>Show the **code**</summary>\n\n```js\nf();\n```\n</details>"],
};

function generator(seed) {
  let state = seed >>> 0;
  return (n) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor(state / 2 ** 32 * n);
  };
}

export function corpus(count = 200) {
  const kinds = ["heading", "text", "text", "list", "list", "code", "table", "math", "quote", "rule"];
  return Array.from({ length: count }, (_, i) => {
    const random = generator(i * 7919 + 1), pick = (kind) => parts[kind][random(parts[kind].length)];
    const blocks = Array.from({ length: 3 + random(8) }, () => pick(kinds[random(kinds.length)]));
    if (random(3) === 0) blocks.push(pick("unfinished"));
    let text = "";
    for (const block of blocks) text += (text && (random(6) ? "\n\n" : "\n")) + block;
    return text;
  });
}

// Text that tries to bring markup, scripts or styles into the document, or to make the parser slow.
export const hostile = [
  "<script>window.hacked = 1</script>", "<img src=x onerror=window.hacked=1>", "[click](javascript:window.hacked=1)", "![x](javascript:window.hacked=1)",
  "[click](JaVaScRiPt:window.hacked=1)", "[a](data:text/html,<script>window.hacked=1</script>)", "<javascript:window.hacked=1>", "[x]: javascript:window.hacked=1\n\n[x]",
  "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe>", "<svg/onload=window.hacked=1>", "<style>*{display:none}</style>", "<a href=\"x\" onclick=\"window.hacked=1\">a</a>",
  "`<b onmouseover=window.hacked=1>`", "```html\n<img src=x onerror=window.hacked=1>\n```", "```\"><img src=x onerror=window.hacked=1>\nx\n```", "| <script>window.hacked=1</script> |\n|---|\n| <img src=x onerror=window.hacked=1> |",
  "$\\href{javascript:window.hacked=1}{x}$", "$$\\htmlData{x=1}{y}\\includegraphics{http://example.org/x.png}$$", "$\\def\\a{\\a\\a}\\a$", "<sub><img src=x onerror=window.hacked=1></sub>",
  "[a](https://x\" onmouseover=\"window.hacked=1)", "&lt;script&gt;window.hacked=1&lt;/script&gt;", "![pixel](https://tracker.example/x.png)", "<meta http-equiv=refresh content=0;url=//example.org>",
  "> ".repeat(2000) + "deep", "- ".repeat(500) + "deep", "[".repeat(5000) + "a" + "]".repeat(5000), "*a ".repeat(5000), "`".repeat(3000) + "a", "$".repeat(3001), "<".repeat(5000), "![".repeat(3000),
  "<details>\n".repeat(3000) + "deep", "<details ontoggle=window.hacked=1 open>x</details>", "<details><summary><img src=x onerror=window.hacked=1></summary>\n<script>window.hacked=1</script>\n</details>",
  "| a |\n|---|\n" + "| x |\n".repeat(3000), "|" + " a |".repeat(300) + "\n|" + "---|".repeat(300) + "\n" + ("|" + " x |".repeat(300) + "\n").repeat(50), "\u202Ertl override\u202C", "\u0000\uFFFE\uD800 broken", "a".repeat(100000),
];

export const story = "Once upon a time there was a **fox**. ".repeat(10).trim();
