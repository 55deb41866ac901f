# cmd: gemini -p 'err MOCK[{"error":401,"message":"mock says 401"}]' -o stream-json
# exit: 145  wall: 5.40s
   5.029 E Warning: Basic terminal detected (TERM=dumb). Visual rendering will be limited. For the best experience, use a terminal emulator with truecolor support.
   5.031 E Warning: 256-color support not detected. Using a terminal with at least 256-color support is recommended for a better visual experience.
   5.195 E Ripgrep is not available. Falling back to GrepTool.
   5.197 < {"type":"init","timestamp":"2026-11-16T10:57:46.049Z","session_id":"a020b9b3-23e0-488f-aa70-140e576b7a93","model":"auto"}
   5.203 < {"type":"message","timestamp":"2026-11-16T10:57:46.055Z","role":"user","content":"err MOCK[{\"error\":401,\"message\":\"mock says 401\"}]"}
   5.336 E Error when talking to Gemini API Full report available at: /base/tmp/gemini-client-error-Turn.run-sendMessageStream-2026-11-16T10-57-46-138Z.json _ApiError: {"error":{"code":401,"message":"mock says 401","status":"UNAUTHENTICATED"}}
   5.336 E     at throwErrorIfNotOK (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:267833:24)
   5.336 E     at process.processTicksAndRejections (node:internal/process/task_queues:104:5)
   5.336 E     at async file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:267596:7
   5.336 E     at async Models.generateContentStream (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:268692:16)
   5.336 E     at async file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:311457:19
   5.336 E     at async file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:288018:23
   5.336 E     at async retryWithBackoff (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:308039:23)
   5.336 E     at async GeminiChat.makeApiCallAndProcessStream (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:332326:28)
   5.336 E     at async GeminiChat.streamWithRetries (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:332079:29)
   5.336 E     at async Turn.run (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:333001:24) {
   5.336 E   status: 401
   5.336 E }
   5.338 < {"type":"result","timestamp":"2026-11-16T10:57:46.189Z","status":"error","error":{"type":"unknown","message":"[API Error: {\"error\":{\"code\":401,\"message\":\"mock says 401\",\"status\":\"UNAUTHENTICATED\"}}]"},"stats":{"total_tokens":120,"input_tokens":100,"output_tokens":20,"cached":0,"input":100,"duration_ms":0,"tool_calls":0,"models":{"gemini-3.5-flash-lite":{"total_tokens":120,"input_tokens":100,"output_tokens":20,"cached":0,"input":100},"gemini-3.8-flash":{"total_tokens":0,"input_tokens":0,"output_tokens":0,"cached":0,"input":0}}}}
