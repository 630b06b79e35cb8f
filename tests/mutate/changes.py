"""Changes of one thing in a C source, which a test should notice."""
import re

WORDS = {' < ': [' <= ', ' > '], ' <= ': [' < ', ' >= '], ' > ': [' >= ', ' < '], ' >= ': [' > ', ' <= '], ' == ': [' != '], ' != ': [' == '],
         ' && ': [' || '], ' || ': [' && '], ' + ': [' - '], ' - ': [' + '], ' / ': [' * '], ' % ': [' / '], ' << ': [' >> '], ' >> ': [' << '],
         ' & ': [' | '], ' | ': [' & '], ' += ': [' -= ', ' = '], ' -= ': [' += '], ' |= ': [' = ', ' &= '], ' &= ': [' = ', ' |= ']}
KINDS = {**{word: 'comparison' for word in (' < ', ' <= ', ' > ', ' >= ', ' == ', ' != ')}, ' && ': 'logic', ' || ': 'logic'}


def code_only(text):
    """The text with comments, strings, characters and preprocessor lines blanked, of the same length."""
    pattern = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|^[ \t]*#(?:[^\n\\]|\\.|\\\n)*'
    return re.sub(pattern, lambda m: re.sub(r'[^\n]', '\x00', m[0]), text, flags=re.S | re.M)


def changes(text):
    """(kind, begin, end, replacement) of every change that could be made."""
    code, found = code_only(text), []
    depth, inside = 0, []  # changes are made in functions only
    for char in code:
        depth += (char == '{') - (char == '}')
        inside.append(depth > 0)

    def add(kind, begin, end, new):
        if inside[begin]:
            found.append((kind, begin, end, new))
    for word, others in WORDS.items():
        for m in re.finditer(re.escape(word), code):
            for other in others:
                add(KINDS.get(word, 'arithmetic'), m.start(), m.end(), other)
    for m in re.finditer(r'\b(true|false)\b', code):
        add('constant', m.start(), m.end(), 'false' if m[1] == 'true' else 'true')
    for m in re.finditer(r'(?<![\w.\'"])(0|[1-9]\d{0,5})(?![\w.\'"])', code):
        add('constant', m.start(), m.end(), str(int(m[1]) + 1))
        if m[1] != '0':
            add('constant', m.start(), m.end(), str(int(m[1]) - 1))
    for m in re.finditer(r'(?<=[(&| ])!(?=[\w(])', code):
        add('logic', m.start(), m.end(), '')
    for m in re.finditer(r'\b(?:if|while) \(', code):
        end = closing(code, m.end() - 1)
        if end:
            add('logic', m.end() - 1, end + 1, f'(!({text[m.end():end]}))')
    for m in re.finditer(r'^([ \t]+)([A-Za-z_][\w>.\[\]* +-]*(?:\(.*\)| [-+|&*]?= [^;{}]*|\+\+|--));$', code, re.M):
        if not re.match(r'(return|goto|else|case|const|static|size_t|u?int\d*_t|int|bool|char|float|double|struct|tn_\w+ \*?\w+ =)\b', m[2]) \
                and not re.match(r'[a-z_][\w ]* \**\w+ = ', m[2]):
            add('statement', m.start(2), m.end(2), '(void)0')
    for m in re.finditer(r'\b(break|continue);', code):
        add('statement', m.start(), m.end(), ';')
    for m in re.finditer(r'(?<=[(,] )?([A-Za-z_][\w.>-]*), ([A-Za-z_][\w.>-]*)(?=[,)])', code):
        if m[1] != m[2] and re.search(r'\w\([^()]*$', code[max(0, m.start() - 200):m.start()].split(';')[-1]):
            add('arguments', m.start(), m.end(), f'{m[2]}, {m[1]}')
    for m in re.finditer(r'\bif \(', code):
        end = closing(code, m.end() - 1)
        if end and re.match(r'\)\s*(return|goto|status =|TN_TRY)', code[end:end + 40]):
            add('error path', m.end(), end, '0')
    for m in re.finditer(r'\bTN_TRY\(', code):
        add('error path', m.start(), m.end(), '(void)(')
    return found


def closing(code, at):
    depth = 0
    for i in range(at, min(len(code), at + 600)):
        depth += (code[i] == '(') - (code[i] == ')')
        if depth == 0:
            return i
    return None
