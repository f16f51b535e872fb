// A RocketMQ client in Go, told by JSON lines on standard input; answers on standard output.
//
//	{"op": "send", "topic": "T", "body": "b", "tag": "A", "keys": "k", "delay": 3}
//	{"op": "batch", "topic": "T", "bodies": ["1", "2"]}
//	{"op": "oneway", "topic": "T", "body": "b"}
//	{"op": "transaction", "topic": "T", "body": "b", "answer": "commit" | "rollback" | "ask"}
//	{"op": "push", "group": "g", "topic": "T", "expression": "A || B", "sql": false, "broadcast": false}
//	{"op": "received", "group": "g"}
//
// An answer is {"ok": …} or {"error": "…"}.  A transaction that is to "ask" is committed when the broker does.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type request struct {
	Op, Topic, Body, Tag, Keys, Group, Expression, Answer string
	Bodies                                                []string
	Properties                                            map[string]string
	Delay                                                 int
	SQL, Broadcast                                        bool
}

type received struct {
	Body       string            `json:"body"`
	Tags       string            `json:"tags"`
	Properties map[string]string `json:"properties"`
	MsgID      string            `json:"msgId"`
	Reconsumed int32             `json:"reconsumeTimes"`
}

type client struct {
	namesrv      primitive.NamesrvAddr
	producer     rocketmq.Producer
	transactions rocketmq.TransactionProducer
	consumers    []rocketmq.PushConsumer
	lock         sync.Mutex
	seen         map[string][]received
}

// What a local transaction says, by the message's ANSWER property; asked again, it says commit.
type listener struct{}

func (listener) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	switch message.GetProperty("ANSWER") {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (listener) CheckLocalTransaction(*primitive.MessageExt) primitive.LocalTransactionState {
	return primitive.CommitMessageState
}

func (c *client) sender() (rocketmq.Producer, error) {
	if c.producer != nil {
		return c.producer, nil
	}
	made, err := rocketmq.NewProducer(
		producer.WithNameServer(c.namesrv), producer.WithGroupName("go-producers"), producer.WithRetry(2),
		producer.WithInstanceName("producer"),
	)
	if err == nil {
		err = made.Start()
	}
	c.producer = made
	return made, err
}

func (c *client) transactional() (rocketmq.TransactionProducer, error) {
	if c.transactions != nil {
		return c.transactions, nil
	}
	made, err := rocketmq.NewTransactionProducer(
		listener{}, producer.WithNameServer(c.namesrv), producer.WithGroupName("go-transactions"),
		producer.WithInstanceName("transactions"),
	)
	if err == nil {
		err = made.Start()
	}
	c.transactions = made
	return made, err
}

func message(asked request, body string) *primitive.Message {
	made := primitive.NewMessage(asked.Topic, []byte(body))
	// These replace all others.
	if asked.Properties != nil {
		made.WithProperties(asked.Properties)
	}
	if asked.Tag != "" {
		made.WithTag(asked.Tag)
	}
	if asked.Keys != "" {
		made.WithKeys([]string{asked.Keys})
	}
	if asked.Delay > 0 {
		made.WithDelayTimeLevel(asked.Delay)
	}
	return made
}

func (c *client) push(asked request) error {
	model := consumer.Clustering
	if asked.Broadcast {
		model = consumer.BroadCasting
	}
	made, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer(c.namesrv), consumer.WithGroupName(asked.Group), consumer.WithConsumerModel(model),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset), consumer.WithInstance(asked.Group),
	)
	if err != nil {
		return err
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: asked.Expression}
	if asked.SQL {
		selector.Type = consumer.SQL92
	}
	take := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		c.lock.Lock()
		defer c.lock.Unlock()
		for _, one := range messages {
			c.seen[asked.Group] = append(c.seen[asked.Group],
				received{string(one.Body), one.GetTags(), one.GetProperties(), one.MsgId, one.ReconsumeTimes})
		}
		return consumer.ConsumeSuccess, nil
	}
	if err = made.Subscribe(asked.Topic, selector, take); err == nil {
		err = made.Start()
	}
	c.consumers = append(c.consumers, made)
	return err
}

func (c *client) answer(asked request) (any, error) {
	deadline, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	switch asked.Op {
	case "send", "batch", "oneway":
		sender, err := c.sender()
		if err != nil {
			return nil, err
		}
		if asked.Op == "oneway" {
			return nil, sender.SendOneWay(deadline, message(asked, asked.Body))
		}
		messages := []*primitive.Message{}
		for _, body := range append(asked.Bodies, asked.Body) {
			if body != "" {
				messages = append(messages, message(asked, body))
			}
		}
		result, err := sender.SendSync(deadline, messages...)
		if err != nil {
			return nil, err
		}
		return map[string]any{"status": result.Status, "msgId": result.MsgID, "offsetMsgId": result.OffsetMsgID}, nil
	case "transaction":
		sender, err := c.transactional()
		if err != nil {
			return nil, err
		}
		asked.Properties = map[string]string{"ANSWER": asked.Answer}
		result, err := sender.SendMessageInTransaction(deadline, message(asked, asked.Body))
		if err != nil {
			return nil, err
		}
		return map[string]any{"status": result.Status, "state": result.State}, nil
	case "push":
		return nil, c.push(asked)
	case "received":
		c.lock.Lock()
		defer c.lock.Unlock()
		return append([]received{}, c.seen[asked.Group]...), nil
	}
	return nil, fmt.Errorf("no such op: %q", asked.Op)
}

func (c *client) close() {
	for _, one := range c.consumers {
		_ = one.Shutdown()
	}
	if c.producer != nil {
		_ = c.producer.Shutdown()
	}
	if c.transactions != nil {
		_ = c.transactions.Shutdown()
	}
}

func main() {
	rlog.SetLogLevel("error")
	made := client{namesrv: primitive.NamesrvAddr{os.Args[1]}, seen: map[string][]received{}}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var asked request
		answer := map[string]any{}
		err := json.Unmarshal(lines.Bytes(), &asked)
		if err == nil {
			answer["ok"], err = made.answer(asked)
		}
		if err != nil {
			answer = map[string]any{"error": err.Error()}
		}
		line, _ := json.Marshal(answer)
		fmt.Println(string(line))
	}
	made.close()
}
