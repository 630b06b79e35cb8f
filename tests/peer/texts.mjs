// Random and nasty texts for comparisons of tokenizers: many scripts, emoji, digits, runs of white space, marks,
// control characters. The texts are always the same.
export function randomTexts(seed, added = []) {
  let state = seed;
  const next = (bound) => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) % bound;
  };
  const pick = (list) => list[next(list.length)];
  const words = `the quick brown fox Jumps OVER a lazy dog I'm you'LL we've it's DON'T o'clock naïve café résumé Ünïcödé
größer Straße ÑANDÚ çà et là où êtes-vous señor привет мир Съешь же ещё этих мягких булок Γειά σου Κόσμε שלום עולם
مرحبا بالعالم سلام دنیا नमस्ते दुनिया বাংলা ভাষা தமிழ் ภาษาไทย ភាសាខ្មែរ မြန်မာ ქართული հայերեն 你好世界 我想在apple工作 漢字仮名交じり文
こんにちは カタカナ 안녕하세요 세계 Tiếng Việt được viết İstanbul ığdır ﬁne ｆｕｌｌ Ａ１ x² ½ ⅷ ① km² µm 3.14159 1,234,567 0xDEADBEEF
1e-9 12345678901234567890 ٣٤٥ १२३ for(int i=0;i<n;++i) a->b c::d #include <stdio.h> snake_case camelCase HTTPServer
https://example.org/a?b=c&d=%20 user@mail.test C:\\Temp\\x.txt $HOME {"key":[1,2,null]} <b>bold</b> <!--x--> === --- *** ___ ...`.split(/\s+/u);
  const blanks = [" ", "  ", "   ", "        ", "\t", "\t\t", "\n", "\n\n", "\n\n\n\n", "\r\n", " \n", "\n ", "\u00a0", "\u2003", "\u3000", " \t \n"];
  const emoji = ["😀", "👍🏽", "👩‍💻", "🏳️‍🌈", "🇩🇪", "❤️", "1️⃣", "🫠", "…", "—", "“", "”", "€", "™", "█", "→"];
  const marks = ["e\u0301", "a\u0323\u0302", "\u0301", "n\u0303", "\u1100\u1161\u11a8", "\uac00\u11a8", "क\u094d\u0937", "\u0e33", "\u200d", "\u200b", "\ufe0f"];
  // Blocks that Unicode assigned long ago: libraries differ in the newest characters.
  const blocks = [[0x20, 0x7e], [0xa1, 0x24f], [0x370, 0x377], [0x391, 0x3ff], [0x400, 0x4ff], [0x5d0, 0x5ea], [0x621, 0x64a],
    [0x905, 0x939], [0xe01, 0xe30], [0x10d0, 0x10f0], [0x1e00, 0x1eff], [0x2010, 0x2027], [0x20a0, 0x20b0], [0x2190, 0x21ff],
    [0x2200, 0x22ff], [0x2500, 0x257f], [0x3041, 0x3096], [0x30a1, 0x30fa], [0x4e00, 0x9fa5], [0xac00, 0xd7a3], [0xff01, 0xff5e],
    [0x1d400, 0x1d454], [0x1f300, 0x1f64f], [0x20000, 0x20100]];
  const part = () => {
    switch (next(14)) {
      case 0: return pick(blanks);
      case 1: return pick(emoji);
      case 2: return pick(marks);
      case 3: return added.length ? pick(added) : pick(words);
      case 4: return String(next(1e9)).slice(0, 1 + next(9));
      case 5: return pick(["a", " ", "=", "-", "!", "\n", "哈", "ha", "\t"]).repeat(1 + next(40));
      case 6: {
        const [low, high] = pick(blocks);
        let text = "";
        for (let i = 0, n = 1 + next(6); i < n; i++) text += String.fromCodePoint(low + next(high - low + 1));
        return text;
      }
      case 7: return String.fromCharCode(next(32));
      default: return pick(words) + (next(3) ? " " : "");
    }
  };
  return () => {
    let text = "";
    for (let k = 0, n = 1 + next(16); k < n; k++) text += part();
    return text;
  };
}

// A tokenizer.json for this library: its step "Digits" knows those of ASCII only, the original all of \p{N}.
export const withUnicodeDigits = (json) =>
  JSON.parse(JSON.stringify(json), (key, step) =>
    step?.type === "Digits" ? { type: "Split", pattern: { Regex: step.individual_digits ? "\\p{N}" : "\\p{N}+" }, behavior: "Isolated", invert: false } : step);
