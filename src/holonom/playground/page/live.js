// The connection to the server: it comes back by itself, and asks for a frame when the last one is drawn.

import { parse } from "./message.js";

const SHORTEST = 250, LONGEST = 3000; // milliseconds between two attempts

export class Live {
  /** `handlers`: hello, state, problem, plane, frame, and lost(), which is called when the connection breaks. */
  constructor(handlers) {
    this.handlers = handlers;
    this.pause = SHORTEST;
    this.connect();
  }

  connect() {
    const address = new URL("live", location.href.replace(/#.*/, ""));
    address.protocol = "ws:";
    this.socket = new WebSocket(address);
    this.socket.binaryType = "arraybuffer";
    this.socket.onmessage = ({ data }) => this.receive(data);
    this.socket.onclose = () => {
      this.handlers.lost();
      setTimeout(() => this.connect(), this.pause);
      this.pause = Math.min(LONGEST, this.pause * 1.6);
    };
  }

  receive(data) {
    const message = typeof data === "string" ? JSON.parse(data) : parse(data);
    if (message.kind === "hello") this.pause = SHORTEST;
    if (message.kind === "frame") {
      // A hidden page draws nothing, so it asks for nothing.
      requestAnimationFrame(() => {
        this.handlers.frame(message);
        this.send({ do: "drawn" });
      });
    } else this.handlers[message.kind](message);
  }

  send(request) {
    if (this.socket.readyState !== WebSocket.OPEN) return false;
    this.socket.send(JSON.stringify(request));
    return true;
  }
}
