package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	testclock "k8s.io/utils/clock/testing"
)

// operation is one call, and what the queue has to be after it and after a millisecond more.
type operation struct {
	Op       string
	Key      int
	Millis   int64
	Got      *int
	Len      int
	Requeues int
}

// workQueue replays sequences of operations, one on each line of the standard input, on client-go's queue with a fake clock. It
// prints a line for each: nothing, or the first difference.
func workQueue() {
	type sequence struct {
		operations []operation
		difference chan string
	}
	sequences, order := make(chan sequence), make(chan sequence, 1024)
	var workers sync.WaitGroup
	for range 32 {
		workers.Go(func() {
			for next := range sequences {
				difference := ""
				// The goroutine of the queue may be late; a difference of the rules stays.
				for pause := 200 * time.Microsecond; pause < time.Second; pause *= 10 {
					if difference = replay(next.operations, pause); difference == "" {
						break
					}
				}
				next.difference <- difference
			}
		})
	}
	go func() {
		lines := bufio.NewReaderSize(os.Stdin, 1<<20)
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				break
			}
			next := sequence{difference: make(chan string, 1)}
			if err := json.Unmarshal(line, &next.operations); err != nil {
				panic(err)
			}
			order <- next
			sequences <- next
		}
		close(sequences)
		close(order)
	}()
	for next := range order {
		fmt.Println(<-next.difference)
	}
	workers.Wait()
}

// replay returns the first difference. After each operation it waits for the goroutine of the queue, which adds what is due.
func replay(operations []operation, pause time.Duration) string {
	clock := testclock.NewFakeClock(time.Unix(0, 0))
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[int](time.Second, 8*time.Second)
	config := workqueue.TypedRateLimitingQueueConfig[int]{Clock: clock}
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(limiter, config)
	defer queue.ShutDown()
	for at, next := range operations {
		switch next.Op {
		case "add":
			queue.Add(next.Key)
		case "after":
			queue.AddAfter(next.Key, time.Duration(next.Millis)*time.Millisecond)
		case "limited":
			queue.AddRateLimited(next.Key)
		case "forget":
			queue.Forget(next.Key)
		case "done":
			queue.Done(next.Key)
		case "advance":
			clock.Step(time.Duration(next.Millis) * time.Millisecond)
		case "get":
			if next.Got == nil && queue.Len() > 0 {
				return fmt.Sprintf("operation %d: client-go has %d keys", at, queue.Len())
			}
			if next.Got != nil {
				if queue.Len() == 0 {
					return fmt.Sprintf("operation %d: client-go has no key", at)
				}
				if got, _ := queue.Get(); got != *next.Got {
					return fmt.Sprintf("operation %d: client-go hands out %d", at, got)
				}
			}
		case "shut down":
			queue.ShutDown()
		}
		clock.Step(time.Millisecond)
		time.Sleep(pause)
		begun := time.Now()
		for queue.Len() != next.Len {
			if time.Since(begun) > 200*time.Millisecond {
				return fmt.Sprintf("operation %d (%+v): client-go has %d keys", at, next, queue.Len())
			}
			time.Sleep(50 * time.Microsecond)
		}
		if requeues := queue.NumRequeues(next.Key); requeues != next.Requeues {
			return fmt.Sprintf("operation %d (%+v): client-go has %d requeues", at, next, requeues)
		}
	}
	return ""
}
