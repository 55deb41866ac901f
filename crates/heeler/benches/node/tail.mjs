// Reads a JSONL file, parses it and takes the last n rows. Prints the best seconds per call.
import { createReadStream } from "node:fs";
import { createInterface } from "node:readline";
const [, , path, n, rounds] = process.argv;
let best = Infinity;
for (let i = 0; i < Number(rounds); i++) {
  const start = process.hrtime.bigint();
  const rows = [];
  for await (const line of createInterface({ input: createReadStream(path), crlfDelay: Infinity })) {
    if (line.trim()) rows.push(JSON.parse(line));
    if (rows.length > 4 * Number(n)) rows.splice(0, rows.length - Number(n));
  }
  if (rows.slice(-Number(n)).length !== Number(n)) throw new Error("short file");
  best = Math.min(best, Number(process.hrtime.bigint() - start) / 1e9);
}
console.log(best);
