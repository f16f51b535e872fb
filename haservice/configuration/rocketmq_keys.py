"""The keys that RocketMQ 4.9.8, or an earlier release, reads from broker and nameserver files, and that we
do not serve.

Users bring the files they have.  A key found here gets a warning that it is not served, and is not
taken for a misspelling.  A few have a sentence of their own.
"""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


BROKER = _names(
    """
    adminBrokerThreadPoolNums autoDeleteUnusedStats brokerFastFailureEnable
    clientManageThreadPoolNums clientManagerThreadPoolQueueCapacity commercialBaseCount
    commercialBigCount commercialEnable commercialTimerCount commercialTransCount compressedRegister
    brokerConfigPath consumerFallbehindThreshold consumerManageThreadPoolNums
    consumerManagerThreadPoolQueueCapacity disableConsumeIfConsumerReadSlowly enableCalcFilterBitMap
    enableDetailStat endTransactionPoolQueueCapacity
    endTransactionThreadPoolNums expectConsumerNumUseFilter fetchNamesrvAddrByAddressServer
    filterDataCleanTimeSpan filterServerNums flushConsumerOffsetHistoryInterval
    forceRegister heartbeatThreadPoolNums heartbeatThreadPoolQueueCapacity highSpeedMode
    isolateLogEnable maxDelayTime maxErrorRateOfBloomFilter messageStorePlugIn msgTraceTopicName
    processReplyMessageThreadPoolNums pullMessageThreadPoolNums
    pullThreadPoolQueueCapacity putMessageFutureThreadPoolNums putThreadPoolQueueCapacity
    queryMessageThreadPoolNums queryThreadPoolQueueCapacity
    replyThreadPoolQueueCapacity rocketmqHome sendMessageThreadPoolNums sendThreadPoolQueueCapacity
    transferMsgByHeap waitTimeMillsInHeartbeatQueue waitTimeMillsInPullQueue
    waitTimeMillsInSendQueue waitTimeMillsInTransactionQueue bitMapLengthConsumeQueueExt
    commitCommitLogLeastPages commitCommitLogThoroughInterval commitIntervalCommitLog
    debugLockEnable deleteCommitLogFilesInterval
    deleteConsumeQueueFilesInterval destroyMapedFileIntervalForcibly diskFallRecorded
    duplicationEnable enableBatchPush enableConsumeQueueExt enableLmq
    enableMultiDispatch enableScheduleAsyncDeliver
    fastFailIfNoBufferInStorePool flushCommitLogTimed
    flushLeastPagesWhenWarmMapedFile mappedFileSizeConsumeQueueExt maxLmqConsumeQueueNum
    maxMsgsNumBatch putMsgIndexHightWater
    redeleteHangedFileInterval scheduleAsyncDeliverMaxPendingLimit
    scheduleAsyncDeliverMaxResendNum2Blocked transientStorePoolEnable
    transientStorePoolSize useReentrantLockWhenPutMessage warmMapedFileEnable
    channelNotActiveInterval clientAsyncSemaphoreValue clientCallbackExecutorThreads
    clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientOnewaySemaphoreValue
    clientPooledByteBufAllocatorEnable clientSocketRcvBufSize clientSocketSndBufSize
    clientWorkerThreads connectTimeoutMillis serverAsyncSemaphoreValue serverCallbackExecutorThreads
    serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable serverSelectorThreads
    serverSocketBacklog serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads useTLS
    useEpollNativeSelector writeBufferHighWaterMark writeBufferLowWaterMark storePathConsumeQueue
    storePathIndex storeCheckpoint abortFile checkTransactionMessageEnable
    """
)

NAMESERVER = _names(
    """
    clusterTest productEnvName rocketmqHome
    serverAsyncSemaphoreValue serverCallbackExecutorThreads serverOnewaySemaphoreValue
    serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog
    serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads useEpollNativeSelector
    writeBufferHighWaterMark writeBufferLowWaterMark
    """
)

# Only a person at the machine changes these: no request does.
BY_HAND = frozenset({"brokerConfigPath", "rocketmqHome"})

# What a user of the key should know beyond "not served".
_FIXED_PATH = "RocketMQ 4.9 does not read it either: the place is fixed, below storePathRootDir"
REMARKS = {
    "checkTransactionMessageEnable": "of older releases; RocketMQ 4.9 does not read it either",
    "storePathConsumeQueue": _FIXED_PATH,
    "storePathIndex": _FIXED_PATH,
    "storeCheckpoint": _FIXED_PATH,
    "abortFile": _FIXED_PATH,
    "transientStorePoolEnable": "messages go to the page cache directly",
    "useTLS": "tls.enable is what makes calls out use TLS",
}
