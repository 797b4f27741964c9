"""``holonom label``."""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from . import arguments, output


def add_commands(commands: arguments.Commands) -> None:
    parser = commands.add_parser("label", help="let people label images on a page of this machine")
    parser.set_defaults(command=label)
    add = parser.add_argument
    add("images", type=Path, metavar="IMAGES", help="an .npz file with an array `images`, or a folder of pictures")
    add("--out", type=Path, metavar="DIR", help="folder of the label files (default: labels, beside the images)")
    add("--labeller", type=arguments.person, metavar="NAME", help="who labels (default: the page asks)")
    add("--port", type=arguments.whole_number(0, 65535), default=8765, metavar="P",
        help="default: 8765; 0 takes a free one")  # fmt: skip
    add("--export", type=Path, metavar="FILE", help="write the labels as a table (CSV) and stop")


def label(options: argparse.Namespace) -> int:
    from ..labelling import load_pictures, make_server, read_people, write_csv

    folder = options.out or options.images.parent / "labels"
    if options.export is not None:
        people = read_people(folder)
        output.require_writable(options.export.parent, "give another file with --export FILE")
        write_csv(people, options.export)
        for name in people.unfinished:
            output.say(f"holonom: left out {name}, who has not labelled every image")
        print(options.export)
        return output.DONE
    output.require("starlette", "uvicorn", "websockets", extra="playground")
    pictures = load_pictures(options.images)
    output.require_writable(folder, "give another with --out DIR, or change its permissions")
    with suppress(KeyboardInterrupt), make_server(pictures, folder, options.port) as server:
        print(f"{server.url}#{quote(options.labeller)}" if options.labeller else server.url, flush=True)
        output.say(f"holonom: open this address to label; labels go to {folder}; stop with Ctrl-C")
        server.serve_forever()
    return output.DONE
