"""Walks the table of llama.cpp's options: walk_flags.py PROGRAM FLAGS.TSV. Tries every row as a flag and as a variable."""
import os
import re
import subprocess
import sys
import tempfile

program, documented = (os.path.abspath(path) for path in sys.argv[1:3])
folder = tempfile.TemporaryDirectory()
os.chdir(folder.name)  # --log-file 1 makes a file there
commands = ["run", "chat", "serve", "bench"]
failures = 0


def fail(text):
    global failures
    failures += 1
    print("FAILED:", text)


clean = {k: v for k, v in os.environ.items() if not k.startswith("LLAMA_")}


def tenon(*words, **variables):
    return subprocess.run([program, *words], env={**clean, **variables}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=60)


rows = [line.split("\t") for line in tenon("help", "--flags-tsv").stdout.splitlines()]
table = {}
for row in rows:
    for name in row[0].split():
        if name in table:
            fail(name + " is listed twice")
        table[name] = row

# Every documented spelling and variable is in the table.
takes = {}
with open(documented, encoding="utf-8") as file:
    for line in list(file)[1:]:
        names, variable = line.rstrip("\n").replace("\\|", "|").split("\t")[:2]
        spellings = re.findall(r"(?:^|, )(-[-\w.]+)", names)
        value = names[names.rfind(spellings[-1]) + len(spellings[-1]):].strip()
        for name in spellings:
            takes[name] = value
            if name not in table:
                fail(name + " is not in the table")
        if variable and not any(table.get(n, ["", ""])[1] == variable for n in spellings):
            fail(variable + " is not in the table")

# Values that the option accepts; 1 suits the others.
values = {"--ctx-size": "64", "--cpu-range": "0-0", "--cpu-mask": "0x1", "--numa": "isolate", "--load-mode": "mmap",
          "--device": "none", "--override-tensor": "exps=CPU", "--split-mode": "none", "--cache-type-k": "f16",
          "--cache-type-v": "f16", "--samplers": "top_k", "--sampler-seq": "k", "--logit-bias": "1+1", "--pooling": "mean",
          "--top-k": "1", "--chat-template-kwargs": "{}", "--reasoning": "on", "--reasoning-format": "none", "--reasoning-budget": "0", "--timeout": "10",
          "--json-schema": "{}", "--output": "md", "--main-gpu": "0", "--spec-type": "none", "--spec-ngram-size-n": "3", "--spec-ngram-simple-size-n": "3",
          "--spec-ngram-map-k-size-n": "3", "--spec-ngram-map-k4v-size-n": "3"}


def value_of(row):
    long_names = [n for n in row[0].split() if n.startswith("--")]
    for name in long_names:
        if name in values:
            return values[name]
    return "1"


def words_of(name, row):
    if not takes[name]:
        return [name]
    if takes[name] == "START END":
        return [name, "1", "2"]
    return [name, value_of(row)]


# Options that take any text, or that another one asks for: flags.sh tries what they do.
ANY_TEXT = {"-p", "--prompt", "--seed", "--log-file", "LLAMA_ARG_LOG_FILE", "--alias", "LLAMA_ARG_ALIAS", "--tags", "LLAMA_ARG_TAGS", "--api-key",
            "LLAMA_API_KEY", "LLAMA_ARG_API_PREFIX", "--cors-origins", "LLAMA_ARG_CORS_ORIGINS", "--hf-file", "LLAMA_ARG_HF_FILE", "--hf-token",
            "--spec-draft-device", "--reasoning-effort", "LLAMA_ARG_REASONING_EFFORT", "--reverse-prompt", "--system-prompt", "--dry-sequence-breaker"}
WORK = {"run": ["-n", "1"], "chat": ["-n", "1"], "serve": ["--port", "0"], "bench": ["-p", "1", "-n", "1", "-r", "1"]}


def complains(command, name):
    """Whether a value that is nonsense is an error that names it: while parsing, or when the command begins its work."""
    flag = [name, "nonsense"] if name.startswith("-") else []
    variables = {} if flag else {name: "nonsense"}
    result = tenon(command, *flag, "--help", **variables)
    if result.returncode == 2 and name in result.stderr:
        return True
    for more in {"run": [[], ["-cnv", "-p", "Hi"]], "chat": [[], ["-st", "-p", "Hi"]]}.get(command, [[]]):
        if command == "serve" and "SSL" in name.upper():  # without it the other one would be alone
            more = ["--ssl-key-file" if "cert" in name.lower() else "--ssl-cert-file", "nonsense"]
        words = [word for word in WORK[command] if not (name in ("--port", "--host", "-m", "--model") and word in ("--port", "0"))]
        try:
            result = tenon(command, *words, *more, *flag, **variables)
        except subprocess.TimeoutExpired:
            return False
        if result.returncode in (1, 2) and ("nonsense" in result.stderr or name.lstrip("-") in result.stderr) and "used together" not in result.stderr:
            return True
    return False


# With --help last the command parses everything and runs nothing.
for number, command in enumerate(commands):
    accepted = []
    for row in rows:
        outcome = row[2 + number]
        for name in row[0].split():
            if name == "--help" or name in ("-h", "--usage"):
                continue
            if command == "bench" and name == "--output-file":
                continue  # bench has llama-bench's own --output, a format
            if command == "bench" and name in ("-o", "-r", "-p", "-n"):
                continue  # options of llama-bench, with other values
            if outcome in ("yes", "note", "–"):
                accepted.append((outcome, name, words_of(name, row)))
            elif outcome == "refused":
                result = tenon(command, *words_of(name, row))
                if result.returncode != 2 or name not in result.stderr or row[6] not in result.stderr:
                    fail(f"{command} {name} is not refused with advice: {result.stderr[:200]}")
            elif outcome == "command":
                result = tenon(command, name)
                if result.returncode == 2 and "unknown command" in result.stderr:
                    fail(f"{command} {name} runs nothing: {result.stderr[:200]}")
    line = [word for _, _, words in accepted for word in words]
    result = tenon(command, *line, "--help")
    if result.returncode != 0:
        fail(f"{command} with all accepted flags: exit {result.returncode}, {result.stderr[-300:]}")
    for outcome, name, _ in accepted:
        noted = re.search(r"note: " + re.escape(name) + r" has no effect", result.stderr) is not None
        if noted != (outcome in ("note", "–")):
            fail(f"{command} {name}: the table says {outcome}, {'a note' if noted else 'no note'} was printed")

    # Variables: those of honoured options are read, noted ones give a note, refused ones fail.
    for row in rows:
        names, variable, outcome = row[0].split(), row[1], row[2 + number]
        long_names = [name for name in names if name.startswith("--")]
        if outcome == "yes":
            # The first long name with a value, and the variable.
            flags = [name for name in long_names if takes[name] not in ("", "START END")][:1]
            if variable and not (command == "bench" and ("--predict" in names or "--parallel" in names)):
                flags.append(variable)  # bench has lengths of a measurement instead
            for name in flags:
                if name not in ANY_TEXT and not complains(command, name):
                    fail(f"{command} does not read {name}")
        elif outcome == "refused" and variable:
            result = tenon(command, "--help", **{variable: "1"})
            if result.returncode != 2 or variable not in result.stderr:
                fail(f"{command}: {variable} is not refused")
            if "" == takes[names[-1]] and tenon(command, "--help", **{variable: "off"}).returncode != 0:
                fail(f"{command}: {variable}=off is refused")
    several = {row[1]: "1" for row in rows if row[1] and row[2 + number] in ("note", "–")}
    result = tenon(command, "--help", **several)
    if result.returncode != 0:
        fail(f"{command} with noted variables: {result.stderr[-300:]}")
    for row in rows:
        if row[1] and row[2 + number] == "note" and f"note: {row[1]} has no effect" not in result.stderr:
            fail(f"{command}: no note about {row[1]}")
        if row[1] and row[2 + number] == "–" and f"note: {row[1]} " in result.stderr:
            fail(f"{command}: a note about {row[1]}, which it does not use")
print(f"{len(rows)} rows, {failures} failures")
sys.exit(failures > 0)
