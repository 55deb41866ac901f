// A bot for Slack as its own framework makes it: it answers each message, and keeps nothing.
//
// node slack-bot.mjs API_URL BOT_TOKEN APP_TOKEN
import bolt from '@slack/bolt';

const [, , slackApiUrl, token, appToken] = process.argv;
const clientOptions = { slackApiUrl: `${slackApiUrl}/` };
const app = new bolt.App({
  token,
  appToken,
  socketMode: true,
  clientOptions,
  logLevel: bolt.LogLevel.ERROR,
});
app.message(async ({ message, say }) => {
  if (!message.bot_id) await say({ text: 'done', thread_ts: message.ts });
});
await app.start();
console.log('ready');
