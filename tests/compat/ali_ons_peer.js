'use strict';

// A process with npm `ali-ons`, told as JSON on standard output, one line each.
//
//   send NAMESRV TOPIC          standard input: one JSON per message -> one JSON per answer
//   consume NAMESRV TOPIC GROUP COUNT   -> one JSON per message, until COUNT have come
//
// NODE_PATH says where the package is.  It serves the test beside it.

const readline = require('readline');
const { Consumer, Message, Producer } = require('ali-ons');

const [ what, nameSrv, topic, group, count ] = process.argv.slice(2);

const quiet = { info() {}, debug() {}, warn: console.error, error: console.error };
const options = {
  nameSrv,
  // Asked for even where nobody checks them.
  accessKeyId: 'none',
  accessKeySecret: 'none',
  httpclient: { request() { throw new Error('this test asks no HTTP server'); } },
  clientIP: '127.0.0.1',
  logger: quiet,
  rebalanceInterval: 500,
};

function say(value) {
  process.stdout.write(JSON.stringify(value) + '\n');
}

async function send() {
  const producer = new Producer({ ...options, producerGroup: 'ons_producer' });
  await producer.ready();
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const wanted = JSON.parse(line);
    const message = new Message(topic, wanted.tags, wanted.body);
    message.keys = [ wanted.keys ];
    const answer = await producer.send(message);
    say({ status: answer.sendStatus, id: answer.msgId, queue: answer.messageQueue.queueId, offset: answer.queueOffset });
  }
}

async function consume() {
  const consumer = new Consumer({
    ...options,
    consumerGroup: group,
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
  });
  let left = Number(count);
  await new Promise(resolve => {
    // The retry topic of a new group has no route at first; what matters is what comes.
    consumer.on('error', error => console.error(error.message));
    consumer.subscribe(topic, '*', async message => {
      say({
        keys: message.keys,
        tags: message.tags,
        body: message.body.toString(),
        queue: message.queueId,
        offset: Number(message.queueOffset),
      });
      left -= 1;
      if (left === 0) resolve();
    });
  });
}

({ send, consume })[what]().then(
  () => process.stdout.write('', () => process.exit(0)),
  error => { console.error(error); process.exit(1); }
);
