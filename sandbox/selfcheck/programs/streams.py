"""Programs that read and write in every way that Python offers, and text that is none."""

from __future__ import annotations

from sandbox.selfcheck.model import ERROR, Program

PROGRAMS = (
    Program(
        "input-lines",
        "input() gives line after line",
        "print(int(input()) + int(input()))",
        stdout="5\n",
        stdin="2\n3\n",
    ),
    Program(
        "input-prompt",
        "a prompt is output",
        "name = input('name? ')\nprint(name)",
        stdout="name? Ada\n",
        stdin="Ada\n",
    ),
    Program(
        "input-partial-line",
        "a last line without its end is read",
        "print([input(), input()])",
        stdout="['a', 'b']\n",
        stdin="a\nb",
    ),
    Program(
        "input-at-the-end",
        "input() at the end is an EOFError",
        "input()",
        status=ERROR,
        stderr_has=("EOFError",),
    ),
    Program(
        "input-all-ways",
        "sys.stdin can be read by line, by character, whole and as bytes",
        "import sys\nprint(repr(sys.stdin.readline()), repr(sys.stdin.read(2)), list(sys.stdin))\n"
        "print(sys.stdin.buffer.read())",
        stdout="'one\\n' 'tw' ['o\\n', 'three\\n']\nb''\n",
        stdin="one\ntwo\nthree\n",
    ),
    Program(
        "input-by-descriptor",
        "file descriptor 0 is the input",
        "import os\nprint(os.read(0, 100))",
        stdout="b'raw\\n'\n",
        stdin="raw\n",
    ),
    Program(
        "input-dev-stdin",
        "/dev/stdin is the input",
        "print(open('/dev/stdin').read())",
        stdout="through a file\n",
        stdin="through a file",
    ),
    Program(
        "output-dev-stdout",
        "/dev/stdout is the output",
        "with open('/dev/stdout', 'w') as file: file.write('direct\\n')",
        stdout="direct\n",
    ),
    Program(
        "input-of-a-child",
        "a child process reads the same input",
        "import subprocess\nprint(subprocess.run(['cat'], capture_output=True, text=True).stdout)",
        stdout="passed on\n",
        stdin="passed on",
    ),
    Program(
        "input-5-mb-unread",
        "input that nobody reads blocks nobody",
        "print('done')",
        stdout="done\n",
        stdin="x" * 5_000_000,
    ),
    Program(
        "input-5-mb-read",
        "large input arrives whole",
        "import sys\nprint(len(sys.stdin.read()))",
        stdout="5000000\n",
        stdin="y" * 5_000_000,
    ),
    Program(
        "input-windows-lines",
        "line ends of another system are line ends",
        "print([input(), input()])",
        stdout="['a', 'b']\n",
        stdin="a\r\nb\r\n",
    ),
    Program(
        "input-unicode",
        "input is UTF-8",
        "print(len(input()), input())",
        stdout="5 🦀\n",
        stdin="é∑中文字\n🦀\n",
    ),
    Program(
        "input-lone-surrogate",
        "half a character in the input is replaced, and no failure",
        "print(len(input()))",
        stdout="3\n",
        stdin="a\ud800b\n",
    ),
    Program(
        "output-unicode",
        "output is UTF-8",
        "print('π ≈ 3.14 — ✓ 🦀')",
        stdout="π ≈ 3.14 — ✓ 🦀\n",
    ),
    Program("output-nul", "a NUL in the output is kept", "print('a\\0b')", stdout="a\0b\n"),
    Program(
        "output-lone-surrogate",
        "half a character in the output is shown escaped",
        "print('\\ud800')",
        stdout="\\ud800\n",
    ),
    Program(
        "output-bytes",
        "bytes that are no text are replaced",
        "import sys\nsys.stdout.buffer.write(b'a\\xff\\xfeb\\n')",
        stdout="a\ufffd\ufffdb\n",
    ),
    Program(
        "output-character-cut-in-two",
        "a character written in two halves is one",
        "import os\nfor byte in 'é'.encode(): os.write(1, bytes([byte]))",
        stdout="é",
    ),
    Program("output-without-newline", "nothing is added", "print('x', end='')", stdout="x"),
    Program("output-none", "no output is no failure", "", stdout="", stderr=""),
    Program(
        "output-order",
        "each stream keeps its order, through Python and past it",
        "import os, sys\nfor i in range(3):\n    print(i, flush=True); os.write(1, b'-\\n')\n"
        "    print(i, file=sys.stderr)",
        stdout="0\n-\n1\n-\n2\n-\n",
        stderr="0\n1\n2\n",
    ),
    Program(
        "warning",
        "a warning is text on stderr and no failure",
        "import warnings\nwarnings.warn('careful')",
        stderr_has=("careful",),
    ),
    Program(
        "stderr-and-success",
        "text on stderr is no failure",
        "import sys\nprint('note', file=sys.stderr)",
        stdout="",
        stderr="note\n",
        exit_code=0,
    ),
    Program(
        "big-number",
        "the interpreter's own bound on digits is its own error",
        "print(2 ** 200_000)",
        status=ERROR,
        stderr_has=("ValueError", "4300 digits"),
    ),
    Program(
        "big-number-allowed",
        "and can be lifted",
        "import sys\nsys.set_int_max_str_digits(0)\nprint(len(str(2 ** 200_000)))",
        stdout="60206\n",
    ),
)
