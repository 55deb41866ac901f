# cmd: kimi -p 'go MOCK[{"text":"I run","sh":"touch a.txt && echo made"},{"text":"done"}]' --output-format stream-json
# exit: 0  wall: 7.85s
   3.275 < {"role":"meta","type":"system.version","version":"2.1.0"}
   4.589 E made
   4.605 < {"role":"assistant","content":"I run","tool_calls":[{"type":"function","id":"call_s0_2588912609ab4b53","function":{"name":"Bash","arguments":"{\"command\":\"touch a.txt && echo made\",\"description\":\"mock\"}"}}]}
   4.605 < {"role":"tool","tool_call_id":"call_s0_2588912609ab4b53","content":"made\n"}
   4.678 < {"role":"assistant","content":"done"}
   4.679 < {"role":"meta","type":"session.resume_hint","session_id":"session_602007bc-43c7-4b96-9353-b45d98aac949","command":"kimi -r session_602007bc-43c7-4b96-9353-b45d98aac949","content":"To resume this session: kimi -r session_602007bc-43c7-4b96-9353-b45d98aac949"}
