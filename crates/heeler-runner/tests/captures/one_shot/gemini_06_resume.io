# cmd: gemini -p 'again MOCK[{"echo":true}]' -o stream-json --resume 420facb4-346d-4796-ba40-75f08d808250
# exit: 0  wall: 3.34s
   2.936 E Warning: Basic terminal detected (TERM=dumb). Visual rendering will be limited. For the best experience, use a terminal emulator with truecolor support.
   2.936 E Warning: 256-color support not detected. Using a terminal with at least 256-color support is recommended for a better visual experience.
   3.036 E Ripgrep is not available. Falling back to GrepTool.
   3.048 < {"type":"init","timestamp":"2026-11-16T10:57:21.054Z","session_id":"420facb4-346d-4796-ba40-75f08d808250","model":"auto"}
   3.050 < {"type":"message","timestamp":"2026-11-16T10:57:21.056Z","role":"user","content":"again MOCK[{\"echo\":true}]"}
   3.141 < {"type":"message","timestamp":"2026-11-16T10:57:21.147Z","role":"assistant","content":"[[\"user\", \"<session_context>\\nThis is the Gemini CLI. We are setting up the context for our chat.\\nToday's date is Monday, November 16, 2026 (formatted according to the user's locale).\\nMy operating system is: linu\"], [\"user\", \"hello MOCK[{\\\"thinking\\\":\\\"hmm\\\",\\\"text\\\":\\\"hi there\\\",\\\"usage\\\":{\\\"input\\\":1000,\\\"cached\\\":400,\\\"output\\\":50,\\\"reasoning\\\":7}}]\"], [\"model\", \"hi there\"], [\"user\", \"again MOCK[{\\\"echo\\\":true}]\"]]","delta":true}
   3.203 < {"type":"result","timestamp":"2026-11-16T10:57:21.208Z","status":"success","stats":{"total_tokens":240,"input_tokens":200,"output_tokens":40,"cached":0,"input":200,"duration_ms":164,"tool_calls":0,"models":{"gemini-3.5-flash-lite":{"total_tokens":120,"input_tokens":100,"output_tokens":20,"cached":0,"input":100},"gemini-3.8-flash":{"total_tokens":120,"input_tokens":100,"output_tokens":20,"cached":0,"input":100}}}}
