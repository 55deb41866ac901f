# cmd: gemini -p 'x MOCK[{"drop":3,"times":1},{"text":"recovered"}]' -o stream-json
# exit: 1  wall: 5.52s
   5.100 E Warning: Basic terminal detected (TERM=dumb). Visual rendering will be limited. For the best experience, use a terminal emulator with truecolor support.
   5.100 E Warning: 256-color support not detected. Using a terminal with at least 256-color support is recommended for a better visual experience.
   5.300 E Ripgrep is not available. Falling back to GrepTool.
   5.303 < {"type":"init","timestamp":"2026-11-16T10:58:17.529Z","session_id":"f75f9c4f-4479-47e3-a18a-95024211d131","model":"auto"}
   5.310 < {"type":"message","timestamp":"2026-11-16T10:58:17.535Z","role":"user","content":"x MOCK[{\"drop\":3,\"times\":1},{\"text\":\"recovered\"}]"}
   5.387 < {"type":"message","timestamp":"2026-11-16T10:58:17.612Z","role":"assistant","content":"partial ","delta":true}
   5.388 < {"type":"message","timestamp":"2026-11-16T10:58:17.613Z","role":"assistant","content":"partial ","delta":true}
   5.389 < {"type":"message","timestamp":"2026-11-16T10:58:17.614Z","role":"assistant","content":"partial ","delta":true}
   5.441 E Error when talking to Gemini API Full report available at: /base/tmp/gemini-client-error-Turn.run-sendMessageStream-2026-11-16T10-58-17-663Z.json TypeError: terminated
   5.441 E     at Fetch.onAborted (node:internal/deps/undici/undici:13877:53)
   5.441 E     at Fetch.emit (node:events:514:28)
   5.441 E     at Fetch.terminate (node:internal/deps/undici/undici:13007:14)
   5.441 E     at Object.onError (node:internal/deps/undici/undici:14011:38)
   5.441 E     at Request.onError (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:211613:31)
   5.441 E     at Object.errorRequest (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:211020:17)
   5.441 E     at Socket.onHttpSocketClose (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:216234:15)
   5.441 E     at Socket.emit (node:events:526:24)
   5.441 E     at TCP.<anonymous> (node:net:362:12) {
   5.441 E   [cause]: SocketError: other side closed
   5.441 E       at Socket.onHttpSocketEnd (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:216209:27)
   5.441 E       at Socket.emit (node:events:526:24)
   5.441 E       at endReadableNT (node:internal/streams/readable:1764:12)
   5.441 E       at process.processTicksAndRejections (node:internal/process/task_queues:90:21) {
   5.441 E     code: 'UND_ERR_SOCKET',
   5.441 E     socket: {
   5.441 E       localAddress: '127.0.0.1',
   5.441 E       localPort: 51020,
   5.441 E       remoteAddress: '127.0.0.1',
   5.441 E       remotePort: 42247,
   5.441 E       remoteFamily: 'IPv4',
   5.441 E       timeout: undefined,
   5.441 E       bytesWritten: 39259,
   5.441 E       bytesRead: 1149
   5.441 E     }
   5.441 E   }
   5.441 E }
   5.445 < {"type":"result","timestamp":"2026-11-16T10:58:17.667Z","status":"error","error":{"type":"unknown","message":"[API Error: terminated]"},"stats":{"total_tokens":120,"input_tokens":100,"output_tokens":20,"cached":0,"input":100,"duration_ms":0,"tool_calls":0,"models":{"gemini-3.5-flash-lite":{"total_tokens":120,"input_tokens":100,"output_tokens":20,"cached":0,"input":100},"gemini-3.8-flash":{"total_tokens":0,"input_tokens":0,"output_tokens":0,"cached":0,"input":0}}}}
