// Appends lines one by one with fs.promises.appendFile, as herdctl does. Prints seconds per line.
import { appendFile } from "node:fs/promises";
const [, , path, count, line] = process.argv;
const text = line + "\n";
const start = process.hrtime.bigint();
for (let i = 0; i < Number(count); i++) await appendFile(path, text);
console.log(Number(process.hrtime.bigint() - start) / 1e9 / Number(count));
