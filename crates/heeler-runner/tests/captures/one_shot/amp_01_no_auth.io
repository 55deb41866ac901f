# cmd: amp -x hello --stream-json
# exit: TIMEOUT-killed  wall: 30.03s
   2.400 < No API key found. Starting login flow...
   2.473 < If your browser does not open automatically, visit:
   2.473 <
   2.473 < https://ampcode.com/auth/cli-login?authToken=REDACTED
   2.473 <
  30.024 < When prompted, paste your code here:
