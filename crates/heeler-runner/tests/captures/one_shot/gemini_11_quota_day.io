# cmd: gemini -p 'err MOCK[{"error":429,"message":"You exceeded your current quota","quota":"PerDay","retry_delay":"3600s"}]' -o stream-json
# exit: 173  wall: 5.81s
   5.340 E Warning: Basic terminal detected (TERM=dumb). Visual rendering will be limited. For the best experience, use a terminal emulator with truecolor support.
   5.342 E Warning: 256-color support not detected. Using a terminal with at least 256-color support is recommended for a better visual experience.
   5.548 E Ripgrep is not available. Falling back to GrepTool.
   5.552 < {"type":"init","timestamp":"2026-11-16T10:58:11.957Z","session_id":"89ac5651-15c6-443b-a9ab-99f2c0ac878d","model":"auto"}
   5.559 < {"type":"message","timestamp":"2026-11-16T10:58:11.964Z","role":"user","content":"err MOCK[{\"error\":429,\"message\":\"You exceeded your current quota\",\"quota\":\"PerDay\",\"retry_delay\":\"3600s\"}]"}
   5.742 < {"type":"result","timestamp":"2026-11-16T10:58:12.146Z","status":"error","error":{"type":"unknown","message":"[API Error: You have exhausted your daily quota on this model.]\nPlease wait and try again later. To increase your limits, request a quota increase through AI Studio, or switch to another /auth method"},"stats":{"total_tokens":120,"input_tokens":100,"output_tokens":20,"cached":0,"input":100,"duration_ms":0,"tool_calls":0,"models":{"gemini-3.5-flash-lite":{"total_tokens":120,"input_tokens":100,"output_tokens":20,"cached":0,"input":100},"gemini-3.8-flash":{"total_tokens":0,"input_tokens":0,"output_tokens":0,"cached":0,"input":0}}}}
   5.743 E Error when talking to Gemini API Full report available at: /base/tmp/gemini-client-error-Turn.run-sendMessageStream-2026-11-16T10-58-12-089Z.json TerminalQuotaError: You have exhausted your daily quota on this model.
   5.743 E     at classifyGoogleError (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:307344:16)
   5.743 E     at retryWithBackoff (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:308062:29)
   5.743 E     at process.processTicksAndRejections (node:internal/process/task_queues:104:5)
   5.743 E     at async GeminiChat.makeApiCallAndProcessStream (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:332326:28)
   5.743 E     at async GeminiChat.streamWithRetries (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:332079:29)
   5.743 E     at async Turn.run (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:333001:24)
   5.743 E     at async GeminiClient.processTurn (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:346675:22)
   5.743 E     at async GeminiClient.sendMessageStream (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:346772:14)
   5.743 E     at async file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/gemini-3HFX2LNT.js:12198:26
   5.743 E     at async main (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/gemini-3HFX2LNT.js:17627:5) {
   5.743 E   cause: {
   5.743 E     code: 429,
   5.743 E     message: 'You exceeded your current quota',
   5.743 E     details: [ [Object], [Object] ]
   5.743 E   },
   5.743 E   retryDelayMs: undefined,
   5.743 E   reason: undefined,
   5.743 E   status: 429
   5.743 E }
