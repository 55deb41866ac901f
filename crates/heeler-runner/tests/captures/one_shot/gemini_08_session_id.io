# cmd: gemini -p 'x MOCK[{"text":"ok"}]' -o stream-json --session-id 11111111-2222-4333-8444-555555555555
# exit: 0  wall: 5.55s
   5.261 E Warning: Basic terminal detected (TERM=dumb). Visual rendering will be limited. For the best experience, use a terminal emulator with truecolor support.
   5.261 E Warning: 256-color support not detected. Using a terminal with at least 256-color support is recommended for a better visual experience.
   5.335 E Ripgrep is not available. Falling back to GrepTool.
   5.335 < {"type":"init","timestamp":"2026-11-16T10:57:31.234Z","session_id":"11111111-2222-4333-8444-555555555555","model":"auto"}
   5.338 < {"type":"message","timestamp":"2026-11-16T10:57:31.237Z","role":"user","content":"x MOCK[{\"text\":\"ok\"}]"}
   5.391 < {"type":"message","timestamp":"2026-11-16T10:57:31.290Z","role":"assistant","content":"ok","delta":true}
   5.426 < {"type":"result","timestamp":"2026-11-16T10:57:31.325Z","status":"success","stats":{"total_tokens":240,"input_tokens":200,"output_tokens":40,"cached":0,"input":200,"duration_ms":91,"tool_calls":0,"models":{"gemini-3.5-flash-lite":{"total_tokens":120,"input_tokens":100,"output_tokens":20,"cached":0,"input":100},"gemini-3.8-flash":{"total_tokens":120,"input_tokens":100,"output_tokens":20,"cached":0,"input":100}}}}
