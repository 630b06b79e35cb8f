"""Runs a command in a terminal of 40 columns, types lines and shows the screen: terminal.py LINES COMMAND…

LINES is a text with \\n and \\t as in printf; a line is typed when the last output is half a second old. The screen is
printed line by line; what scrolled out is printed, too."""
import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import unicodedata

WIDTH = 40
typed = sys.argv[1].encode().decode("unicode_escape")
pid, master = pty.fork()
if pid == 0:
    os.environ["TERM"] = "xterm"
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 200, WIDTH, 0, 0))
    os.execvp(sys.argv[2], sys.argv[2:])
data = b""
pieces = re.findall(r"[^\n\t]*[\n\t]", typed)
while True:
    ready = select.select([master], [], [], 0.5 if data else 20)[0]
    try:
        if ready:
            data += os.read(master, 65536)
        elif pieces:
            os.write(master, pieces.pop(0).encode())
        else:
            os.write(master, b"\x04")
            pieces = None
    except OSError:
        break
    if not ready and pieces is None and not select.select([master], [], [], 20)[0]:
        break

screen, row, column = [[" "] * WIDTH for _ in range(400)], 0, 0
for part in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|\x1b.|.|\n", data.decode("utf-8", "replace"), re.S):
    number = int(part[2:-1]) if part.startswith("\x1b[") and part[2:-1].isdigit() else 1
    if part == "\n":
        row += 1
    elif part == "\r":
        column = 0
    elif part == "\b":
        column = max(0, column - 1)
    elif part.startswith("\x1b"):
        if part[-1] == "D":
            column = max(0, min(column, WIDTH) - number)
        elif part[-1] == "C":
            column = min(WIDTH - 1, column + number)
        elif part[-1] == "A":
            row = max(0, row - number)
        elif part[-1] == "K":
            screen[row][column:] = [" "] * (WIDTH - column)
        elif part[-1] == "J":
            screen[row][column:] = [" "] * (WIDTH - column)
    elif part >= " ":
        cells = 2 if unicodedata.east_asian_width(part) in "WF" else 1
        if column + cells > WIDTH:
            row, column = row + 1, 0
        screen[row][column] = part
        for i in range(1, cells):
            screen[row][column + i] = ""
        column += cells
print("\n".join("".join(line).rstrip() for line in screen[:row + 1]))
