package quorumlocktest_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/quorumlocktest"
)

func Example() {
	cluster := quorumlocktest.NewCluster(3)
	defer cluster.Close()

	ctx := context.Background()
	var clients []rueidis.Client
	for _, option := range cluster.Options() {
		client, err := rueidis.NewClient(option)
		if err != nil {
			fmt.Println(err)
			return
		}
		defer client.Close()
		clients = append(clients, client)
	}

	cluster.Nodes()[1].Kill()

	for i, client := range clients {
		err := client.Do(ctx, client.B().Set().Key("lock").Value("me").Nx().PxMilliseconds(1000).Build()).Error()
		fmt.Println(i, err == nil)
	}
	_, err := cluster.Nodes()[1].Do("GET", "lock")
	fmt.Println("refused:", errors.Is(err, syscall.ECONNREFUSED))

	cluster.Nodes()[1].Restart()
	v, err := cluster.Nodes()[1].Do("GET", "lock")
	fmt.Println("restarted:", v, err)
	// Output:
	// 0 true
	// 1 false
	// 2 true
	// refused: true
	// restarted: <nil> <nil>
}
