// Reads the last n entries of an NDJSON transcript by a scan from its end, as agents-fleet documents, and
// puts them on the screen. Prints seconds from the start of the process, or the memory that only it has.
import { closeSync, fstatSync, openSync, readFileSync, readSync, writeSync } from "node:fs";
const [, , path, n, what] = process.argv;
const file = openSync(path, "r");
let at = fstatSync(file).size;
let tail = Buffer.alloc(0);
let lines = 0;
while (at > 0 && lines <= Number(n)) {
  const block = Buffer.alloc(Math.min(65536, at));
  at -= block.length;
  readSync(file, block, 0, block.length, at);
  for (const byte of block) if (byte === 10) lines++;
  tail = Buffer.concat([block, tail]);
}
closeSync(file);
const rows = tail.toString("utf8").split("\n").filter((line) => line.trim()).slice(-Number(n));
const screen = rows.map((row) => JSON.parse(row)).map((row) => `${row.role}: ${row.content ?? ""}`);
writeSync(2, screen.join("\n"));
const anonymous = () => Number(/RssAnon:\s+(\d+)/.exec(readFileSync("/proc/self/status", "utf8"))[1]) * 1024;
console.log(what === "memory" ? anonymous() : performance.now() / 1e3);
